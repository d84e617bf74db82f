#!/bin/bash
# Replaces dracut's module of this name, which would install the drivers of all NICs.

check() {
    return 255
}

installkernel() {
    instmods virtio_net 8021q bonding
}
