//! The commands `network-data` and `config-drive`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Error, Result, anyhow, bail};
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use clap::{Args, ValueEnum};
use glowplug::atomic_file::output_path;
use glowplug::diagnostic::Diagnostic;
use glowplug::formats::{Format, Meaning, read_network};
use glowplug::host::address::{is_link_local, parse_address, parse_gateway};
use glowplug::host::claim::{Allocation, Claimant, Machine};
use glowplug::host::expand::{Grant, Template};
use glowplug::host::image::{self, ConfigDrive, Instance, NoCloud};
use glowplug::host::pool::{Pool, Reserved, Settings};
use glowplug::network::{Family, Hostname, InterfaceName};
use ipnetwork::IpNetwork;
use pnet_base::MacAddr;
use serde::Serialize;
use slog::Logger;

use crate::Reported;
use crate::input::{
    Named, in_template, interface, mac_address, named, object_name, public_key, read, read_template, uuid, with_prefix,
};
use crate::output::{VERSION, print, print_json, say, write_in_one_step};

#[derive(Args)]
pub(crate) struct NetworkData {
    /// Address with its prefix length, one of each family
    #[arg(value_name = "ADDRESS/LENGTH", value_parser = with_prefix, required = true)]
    addresses: Vec<IpNetwork>,
    /// Add the addresses to this JSON or YAML document
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Interface to configure
    #[arg(long, value_name = "NAME", default_value = Pool::DEFAULT_INTERFACE, value_parser = interface)]
    interface: InterfaceName,
    /// Default gateway, one of each family
    ///
    /// A default route in the template takes precedence.
    #[arg(long = "gateway", value_name = "ADDRESS", value_parser = parse_gateway)]
    gateways: Vec<IpAddr>,
    /// Allow a gateway outside the subnet
    ///
    /// The machine then reaches the gateway directly on the link, without a route.
    #[arg(long)]
    on_link_gateway: bool,
    /// Name server; may be repeated
    ///
    /// A name server of the same family in the template takes precedence.
    #[arg(long = "nameserver", value_name = "ADDRESS", value_parser = parse_address)]
    nameservers: Vec<IpAddr>,
    /// MAC address of the NIC
    #[arg(long, value_name = "MAC", value_parser = mac_address)]
    mac: Option<MacAddr>,
}

#[derive(Args)]
pub(crate) struct ConfigDriveArgs {
    /// Namespace and name of the machine
    #[arg(value_name = "NAMESPACE/NAME", value_parser = named)]
    machine: Named,
    /// Write the image to this file
    #[arg(short, long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(output_path))]
    output: PathBuf,
    /// Label: config-2 or cidata
    ///
    /// The label selects the layout.
    #[arg(long, value_name = "LABEL", default_value = "config-2", hide_possible_values = true)]
    label: Label,
    /// Network document; - is standard input
    ///
    /// network_data.json of a config-2 drive, network-config of a cidata drive.
    #[arg(long, value_name = "FILE|-")]
    network_data: Option<PathBuf>,
    /// User data, for Ignition
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
    /// Firmware UUID of the machine
    #[arg(long, value_name = "UUID", value_parser = uuid)]
    uuid: Option<String>,
    /// Hostname [default: first label of the name]
    ///
    /// The default has at most 63 characters.
    #[arg(long, value_name = "NAME")]
    hostname: Option<Hostname>,
    /// Name of the instance type
    #[arg(long, value_name = "NAME", value_parser = object_name)]
    instance_type: Option<String>,
    /// Line for authorized_keys; may be repeated
    #[arg(long = "public-key", value_name = "KEY", value_parser = public_key)]
    public_keys: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenDrive {
    version: u32,
    /// The file with the image.
    output: String,
    /// Size of the image, in bytes.
    bytes: usize,
    /// Members of the volume that KubeVirt takes only from a Secret, because their content is too large.
    needs_secret: Vec<&'static str>,
}

/// The label of an image, for the layout of OpenStack or of cloud-init.
#[derive(Clone, Copy, ValueEnum)]
enum Label {
    #[value(name = "config-2")]
    Config2,
    Cidata,
}

pub(crate) fn network_data(args: NetworkData, log: &Logger) -> Result<ExitCode> {
    let template = match &args.template {
        Some(path) => read_template(path, log)?,
        None => Template::minimal([&args.interface]),
    };
    let claimant = Claimant { machine: example_machine(), interface: args.interface };
    let mut addresses = args.addresses;
    addresses.sort_unstable();
    let allocation = Allocation { claimant, addresses };
    check_gateways(&allocation.addresses, &args.gateways, args.on_link_gateway)?;
    let settings = Settings { gateways: args.gateways, nameservers: args.nameservers, ..Settings::default() };
    let grant = Grant { allocation: &allocation, settings, mac_address: args.mac, is_named: true };
    let file = args.template.as_deref();
    let of_template = in_template(template.facts(&args.interface).map_err(Error::new), file)?.gateways;
    for gateway in of_template.into_iter().filter(|gateway| !args.on_link_gateway && !is_link_local(*gateway)) {
        let mut subnets = allocation.addresses.iter().filter(|it| Family::of(it.ip()) == Family::of(gateway));
        if let Some(address) = subnets.find(|address| !address.contains(gateway)) {
            let subnet = IpNetwork::new(address.network(), address.prefix())?;
            let expected = format!("an address of {subnet}, or --on-link-gateway");
            return in_template(Err(anyhow!("gateway {gateway}: outside the subnet, expected {expected}")), file);
        }
    }
    let document = in_template(template.expand(&[grant]).map_err(Error::new), file)?;
    for address in &allocation.addresses {
        if let Some(end) = Reserved::end_of_subnet(*address) {
            let expected = "another address of the subnet";
            say(format_args!("warning: {address}: is the {end} of its subnet, expected {expected}"));
        }
    }
    tell_warnings(document.warnings());
    print(&format!("{}\n", document.text()))?;
    Ok(ExitCode::SUCCESS)
}

/// Checks that the machine can reach its gateways, by the same rules as for a pool.
fn check_gateways(addresses: &[IpNetwork], gateways: &[IpAddr], on_link: bool) -> Result<()> {
    let mut families = BTreeSet::new();
    for gateway in gateways {
        let family = Family::of(*gateway);
        let Some(address) = addresses.iter().find(|address| Family::of(address.ip()) == family) else {
            bail!("--gateway {gateway}: no {family} address, expected one of the family of the gateway");
        };
        let subnet = IpNetwork::new(address.network(), address.prefix())?;
        if !families.insert(family) {
            bail!("--gateway {gateway}: second {family} gateway, expected at most one of each family");
        } else if *gateway == address.ip() {
            bail!("--gateway {gateway}: the machine's own address, expected another one");
        } else if is_link_local(*gateway) {
            continue;
        } else if !subnet.contains(*gateway) && !on_link {
            bail!("--gateway {gateway}: outside the subnet, expected an address of {subnet}, or --on-link-gateway");
        } else if let Some(end) = Reserved::end_of_subnet(IpNetwork::new(*gateway, subnet.prefix())?)
            && family == Family::Ipv4
        {
            bail!("--gateway {gateway}: the {end} of {subnet}, expected another address of it");
        }
    }
    Ok(())
}

pub(crate) fn config_drive(args: ConfigDriveArgs, log: &Logger) -> Result<ExitCode> {
    let content = |path: &Option<PathBuf>| path.as_deref().map(|path| read(path, image::MAX_FILE, log)).transpose();
    let (network_data, user_data) = (content(&args.network_data)?, content(&args.user_data)?);
    if let (Some(path), Some(document)) = (&args.network_data, &network_data) {
        check(path, document, args.label)?;
    }
    let keys: Vec<&str> = args.public_keys.iter().map(String::as_str).collect();
    let instance = Instance {
        namespace: &args.machine.namespace,
        name: &args.machine.name,
        uuid: args.uuid.as_deref(),
        hostname: args.hostname.as_ref().map(Hostname::as_str),
        instance_type: args.instance_type.as_deref(),
        public_keys: &keys,
    };
    let (network, user) = (network_data.as_deref(), user_data.as_deref().unwrap_or_default());
    let image = match args.label {
        Label::Config2 => {
            let meta_data = instance.meta_data_json();
            ConfigDrive { meta_data: meta_data.as_bytes(), network_data: network, user_data: user }.image()?
        }
        Label::Cidata => {
            let meta_data = instance.meta_data();
            NoCloud { meta_data: meta_data.as_bytes(), network_config: network, user_data: user }.image()?
        }
    };
    write_in_one_step(&args.output, &image, log)?;
    let contents = [("network data", "networkData", network.unwrap_or_default()), ("user data", "userData", user)];
    let large = contents.into_iter().filter(|(_, _, content)| content.len() > image::MAX_INLINE);
    if args.json {
        let (output, bytes) = (args.output.display().to_string(), image.len());
        let needs_secret = large.map(|(_, name, _)| name).collect();
        print_json(&WrittenDrive { version: VERSION, output, bytes, needs_secret })?;
        return Ok(ExitCode::SUCCESS);
    }
    for (what, _, content) in large {
        let (bytes, limit) = (content.len(), image::MAX_INLINE);
        say(format_args!("note: {what} of {bytes} bytes needs a Secret, KubeVirt takes at most {limit} without one"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses a document that the guest cannot read, or that configures nothing. Warns of a document whose format
/// cloud-init and afterburn might not read from a drive with this label.
fn check(path: &Path, document: &[u8], label: Label) -> Result<()> {
    let reading = read_network(document);
    for diagnostic in reading.diagnostics.kept() {
        say(format_args!("{}: {}: {diagnostic}", diagnostic.severity, path.display()));
    }
    match reading.meaning {
        Meaning::Refused => return Err(Error::new(Reported)),
        Meaning::Unconfigured => bail!(
            "{}: configures nothing, expected the document of a machine; without --network-data, the drive has no network data",
            path.display()
        ),
        Meaning::Disabled | Meaning::Network(_) => {}
    }
    let is_openstacks = |format: Format| format == Format::NetworkData;
    let label_is_openstacks = matches!(label, Label::Config2);
    if let Some(format) = reading.format.filter(|format| is_openstacks(*format) != label_is_openstacks) {
        let label = if label_is_openstacks { "config-2" } else { "cidata" };
        let path = path.display();
        say(format_args!(
            "warning: {path}: {format} on a {label} drive: glowplug reads it, but cloud-init and afterburn might not"
        ));
    }
    Ok(())
}

/// Returns a placeholder machine, for a document that belongs to no machine.
pub(crate) fn example_machine() -> Machine {
    Machine::new(String::new(), String::new(), String::new())
}

pub(crate) fn tell_warnings(warnings: &[Diagnostic]) {
    for diagnostic in warnings {
        say(format_args!("warning: {diagnostic}"));
    }
}
