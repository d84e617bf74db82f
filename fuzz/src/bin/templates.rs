#![no_main]
glowplug_fuzz::fuzz!(templates);
