#!/bin/bash
# Reads the default arguments of the distribution, and fails if there are none.
set -eu
drop_in=/usr/lib/systemd/system/afterburn-network-kargs.service.d/50-afterburn-network-kargs-default.conf
# shellcheck source=/dev/null
. <(grep -o 'AFTERBURN_NETWORK_KARGS_DEFAULT=[^"]*' "$drop_in" | sed 's/=\(.*\)/="\1"/')
echo "$AFTERBURN_NETWORK_KARGS_DEFAULT" >/run/boot-test-teardown
