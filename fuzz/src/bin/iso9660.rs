#![no_main]
glowplug_fuzz::fuzz!(iso9660);
