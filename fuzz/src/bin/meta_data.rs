#![no_main]
glowplug_fuzz::fuzz!(meta_data);
