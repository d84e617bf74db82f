//! Shows how a machine understands a config drive: its label, its files, and its network. The program reads the image
//! without a mount and without root, and does not trust the content.
//!
//! `cargo run --example inspect_image -- fixtures/images/hypershift.iso`

use std::error::Error;
use std::fs::File;

use glowplug::drive::{ConfigDrive, Document, Volume};
use glowplug::formats::{Meaning, read_network};
use glowplug::render::dracut;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("expected the path of an image")?;
    let image = File::open(&path)?;
    let volume = Volume::probe(&image)?.ok_or("neither ISO 9660 nor FAT")?;
    println!("{path}: {} with the label {:?}", volume.file_system, volume.label);

    let files = volume.open(&image)?;
    let drive = ConfigDrive::read_from(&files)?.ok_or("not laid out as a config drive")?;
    println!("layout: {}", drive.layout);
    for document in [&drive.meta_data, &drive.network] {
        match document {
            Ok(Some(Document { path, bytes })) => println!("{path}: {} bytes", bytes.len()),
            Ok(None) => {}
            Err(error) => println!("{error}"),
        }
    }

    let Some(document) = drive.network? else {
        println!("The drive has no network document.");
        return Ok(());
    };
    let mut reading = read_network(&document.bytes);
    match reading.meaning {
        Meaning::Unconfigured => println!("The document configures nothing: the distribution's default applies."),
        Meaning::Disabled => println!("The document disables the network."),
        Meaning::Refused => println!("The document is refused:"),
        Meaning::Network(network) => {
            for link in network.links() {
                let ipv4 = link.ipv4.addresses.iter().map(ToString::to_string);
                let addresses: Vec<_> = ipv4.chain(link.ipv6.addresses.iter().map(ToString::to_string)).collect();
                println!("{} is {:?} with {}", link.path, link.id, addresses.join(" and "));
            }
            println!("{}", dracut::render(&network, &mut reading.diagnostics).line);
        }
    }
    for diagnostic in reading.diagnostics.kept() {
        println!("{diagnostic}");
    }
    Ok(())
}
