#!/bin/bash
# Replaces dracut's module of this name: a network program that glowplug does not support.

check() {
    return 255
}

install() {
    :
}
