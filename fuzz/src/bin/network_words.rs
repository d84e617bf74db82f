#![no_main]
glowplug_fuzz::fuzz!(network_words);
