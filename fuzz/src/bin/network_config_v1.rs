#![no_main]
glowplug_fuzz::fuzz!(network_config_v1);
