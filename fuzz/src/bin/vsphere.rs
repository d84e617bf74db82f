#![no_main]
glowplug_fuzz::fuzz!(vsphere);
