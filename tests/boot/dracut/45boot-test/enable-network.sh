#!/bin/sh
# shellcheck source=/dev/null
. /lib/dracut-lib.sh
# shellcheck source=/dev/null
. /lib/nm-lib.sh
echo rd.neednet=1 >/etc/cmdline.d/40-boot-test-neednet.conf
nm_generate_connections
