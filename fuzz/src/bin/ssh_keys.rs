#![no_main]
glowplug_fuzz::fuzz!(ssh_keys);
