//! Reads kernel arguments from a property of a VMware machine.
//!
//! The owner of the machine sets the property, and the guest reads the property through VMware's backdoor. The property
//! has the name that afterburn uses, so a machine that was set up for afterburn needs no change. The tests use a
//! stand-in for the hypervisor; this code has not run on a VMware machine yet.

use vmw_backdoor::VmwError;

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::render::dracut;
use crate::render::vsphere::MAX_BYTES;

pub use crate::render::vsphere::PROPERTY;

/// Name of the platform in `--provider` and `ignition.platform.id=`.
pub const VMWARE: &str = "vmware";

/// dracut's network arguments with a value, from dracut.cmdline(7).
const ARGUMENTS: [&str; 16] = [
    "BOOTIF",
    "biosdevname",
    "bond",
    "bootdev",
    "bridge",
    "ifname",
    "ip",
    "nameserver",
    "rd.bootif",
    "rd.neednet",
    "rd.peerdns",
    "rd.route",
    "rd.znet",
    "rd.znet_ifname",
    "team",
    "vlan",
];

/// Prefixes of the arguments for timeouts and retries.
const TIMES: [&str; 2] = ["rd.net.timeout.", "rd.net.dhcp."];

/// Reads properties of the machine from the hypervisor.
pub trait GuestInfo {
    /// Reads the value of a property. `None` when the property is not set.
    ///
    /// # Errors
    ///
    /// The hypervisor does not answer. The string is the reason.
    fn property(&self, name: &str) -> Result<Option<Vec<u8>>, String>;
}

/// VMware's own interface to the hypervisor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backdoor;

/// Reads [`PROPERTY`]. `None` when the property is not set, or empty.
///
/// # Errors
///
/// The reason why the hypervisor does not answer.
pub fn read(info: &dyn GuestInfo) -> Result<Option<Vec<u8>>, String> {
    let value = info.property(PROPERTY)?;
    Ok(value.filter(|bytes| !bytes.trim_ascii().is_empty()))
}

/// Reads the value of the property as one line of network arguments. `None` when the value is too long, or when a word
/// is not a legal network argument of dracut. The diagnostics name each mistake.
pub(super) fn arguments(bytes: &[u8], diagnostics: &mut Diagnostics) -> Option<String> {
    if bytes.len() > MAX_BYTES {
        diagnostics.push(Diagnostic::error(PROPERTY, "too many bytes", bytes.len(), &format!("at most {MAX_BYTES}")));
        return None;
    }
    let text = String::from_utf8_lossy(bytes);
    let mut words = Vec::new();
    for (at, word) in text.split_ascii_whitespace().enumerate() {
        let path = format!("{PROPERTY}[{at}]");
        if !is_network_argument(word) {
            diagnostics.push(Diagnostic::error(path, "invalid argument", word, "one of dracut's network arguments"));
        } else if !dracut::is_legal(word) {
            diagnostics.push(Diagnostic::error(path, "illegal byte", word, dracut::ALPHABET));
        } else {
            words.push(word);
        }
    }
    (!diagnostics.has_errors()).then(|| words.join(" "))
}

fn is_network_argument(word: &str) -> bool {
    let Some((key, value)) = word.split_once('=') else { return false };
    let is_time = || TIMES.iter().any(|prefix| key.strip_prefix(prefix).is_some_and(|name| !name.is_empty()));
    !value.is_empty() && (ARGUMENTS.contains(&key) || is_time())
}

// === impl Backdoor ===

impl GuestInfo for Backdoor {
    fn property(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        // On any other hypervisor, the access to the backdoor would end the program with a signal.
        if !vmw_backdoor::is_vmware_cpu() {
            return Err("the hypervisor is not VMware's".to_owned());
        }
        let because = |e: VmwError| e.to_string();
        let mut backdoor = vmw_backdoor::probe_backdoor().map_err(because)?;
        let mut channel = backdoor.open_enhanced_chan().map_err(because)?;
        channel.get_guestinfo(name.as_bytes()).map_err(because)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hypervisor with one property.
    struct StandIn(Result<Option<&'static str>, &'static str>);

    impl GuestInfo for StandIn {
        fn property(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
            assert_eq!(name, "guestinfo.afterburn.initrd.network-kargs");
            self.0.map(|value| value.map(|text| text.as_bytes().to_vec())).map_err(str::to_owned)
        }
    }

    #[test]
    fn the_property_has_the_name_that_afterburn_uses_and_an_empty_value_counts_as_missing() {
        assert_eq!(read(&StandIn(Ok(Some("ip=dhcp")))), Ok(Some(b"ip=dhcp".to_vec())));
        assert_eq!(read(&StandIn(Ok(Some(" \n")))), Ok(None));
        assert_eq!(read(&StandIn(Ok(None))), Ok(None));
        assert_eq!(read(&StandIn(Err("no answer"))), Err("no answer".to_owned()));
    }

    /// Reads a value of the property. Returns the line of arguments, or the diagnostics.
    fn read_line(text: &str) -> Result<String, Vec<String>> {
        let mut diagnostics = Diagnostics::default();
        let line = arguments(text.as_bytes(), &mut diagnostics);
        line.ok_or_else(|| diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_network_argument_of_dracut_is_accepted() {
        for word in [
            "ip=192.168.1.100::192.168.1.1:24:worker-0:ens192:none",
            "ip=[2001:db8::5]::[2001:db8::1]:64::ens192:none",
            "nameserver=192.168.1.53",
            "rd.route=10.0.0.0/8:192.168.1.2:ens192",
            "bond=bond0:ens192,ens224:mode=active-backup",
            "vlan=bond0.5:bond0",
            "BOOTIF=01-52-54-00-12-34-56",
            "rd.net.timeout.carrier=20",
            "rd.net.dhcp.retry=3",
        ] {
            assert_eq!(read_line(word), Ok(word.to_owned()));
        }
    }

    #[test]
    fn the_words_of_the_property_are_joined_by_single_blanks() {
        assert_eq!(read_line(" ip=dhcp\n nameserver=1.1.1.1\t"), Ok("ip=dhcp nameserver=1.1.1.1".to_owned()));
    }

    #[test]
    fn every_word_that_does_not_configure_a_network_is_an_error() {
        let expected = |at: usize, word: &str| {
            format!("{PROPERTY}[{at}]: invalid argument {word:?}, expected one of dracut's network arguments")
        };
        let line = "init=/bin/sh ip=dhcp rd.break systemd.debug-shell=1 ip ip= rd.net.timeout.=1";
        let words = [
            (0, "init=/bin/sh"),
            (2, "rd.break"),
            (3, "systemd.debug-shell=1"),
            (4, "ip"),
            (5, "ip="),
            (6, "rd.net.timeout.=1"),
        ];
        assert_eq!(read_line(line), Err(words.map(|(at, word)| expected(at, word)).to_vec()));
    }

    #[test]
    fn characters_with_a_meaning_in_a_shell_are_errors() {
        let expected = "letters, digits, blanks and . _ : [ ] , / = + -";
        for word in ["ip=$(id)", "ip=dhcp;id", "ip=\u{e9}"] {
            let error = format!("{PROPERTY}[0]: illegal byte {word:?}, expected {expected}");
            assert_eq!(read_line(word), Err(vec![error]));
        }
    }

    #[test]
    fn a_property_that_is_too_long_is_an_error() {
        let error = format!("{PROPERTY}: too many bytes \"4097\", expected at most 4096");
        assert_eq!(read_line(&"x".repeat(4097)), Err(vec![error]));
    }
}
