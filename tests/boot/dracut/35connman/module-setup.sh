#!/bin/bash
# Replaces dracut's module connman by an empty one. glowplug does not support this network program.

check() {
    return 255
}

install() {
    :
}
