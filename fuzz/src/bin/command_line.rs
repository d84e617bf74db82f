#![no_main]
glowplug_fuzz::fuzz!(command_line);
