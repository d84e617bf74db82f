//! Parses the kernel command line, and the other files from which dracut reads kernel arguments.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::{fs, str};

use pnet_base::MacAddr;

use crate::network::{InterfaceName, parse_mac_address};

/// Words of a kernel command line. As in the kernel, blanks separate words, except between double quotes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CommandLine {
    words: Vec<String>,
    length: usize,
}

/// Every kernel argument that dracut reads: the function `getcmdline` of
/// `dracut-ng/dracut:modules.d/80base/dracut-lib.sh`. dracut joins its files, so an `ip=` of the image counts as much as
/// an `ip=` of the boot loader, and no later argument cancels it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Arguments {
    /// The kernel command line, the only source of the platform and of the options of glowplug.
    pub(super) command_line: CommandLine,
    /// The path of each file below the root, and its arguments, in the order in which dracut reads them.
    sources: Vec<(String, CommandLine)>,
}

/// Path of the kernel command line, below a root.
const COMMAND_LINE: &str = "proc/cmdline";
/// Arguments that afterburn writes during the same boot. On a platform without network data for afterburn, these are the
/// defaults of the distribution. Defaults never take precedence over a drive, and afterburn may run before glowplug or
/// after it.
const AFTERBURN: &str = "etc/cmdline.d/50-afterburn-network-kargs.conf";

/// Lists the files of a directory that dracut reads, by their paths below the root: those that match `*.conf`. The list
/// is empty when there is no such directory.
fn fragments(root: &Path, directory: &str) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(root.join(directory)) {
        Err(e) if is_absence(&e) => return Ok(Vec::new()),
        entries => entries.map_err(|e| at(directory, &e))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| at(directory, &e))?.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".conf") && !name.starts_with('.') {
            files.push(format!("{directory}/{name}"));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Adds the path below the root to an error.
fn at(path: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("/{path}: {error}"))
}

/// Returns whether the error shows that there is no such file.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

// === impl Arguments ===

impl Arguments {
    /// Reads all files below a root, except for the file `own`, which has the arguments of an earlier run, and except for
    /// [`AFTERBURN`].
    ///
    /// # Errors
    ///
    /// The error of the system call for a file or directory that exists, with its path.
    pub(super) fn read_from(root: &Path, own: &str) -> io::Result<Self> {
        let mut files = fragments(root, "etc/cmdline.d")?;
        files.extend(["etc/cmdline", COMMAND_LINE].map(str::to_owned));
        // Only newer versions of dracut make and read this directory.
        files.extend(fragments(root, "run/initramfs/cmdline.d")?);
        files.retain(|file| file != own && file != AFTERBURN);
        let mut arguments = Self::default();
        for file in files {
            let line = CommandLine::read(&root.join(&file)).map_err(|e| at(&file, &e))?;
            if file == COMMAND_LINE {
                arguments.command_line = line.clone();
            }
            arguments.sources.push((file, line));
        }
        Ok(arguments)
    }

    /// Returns the reason not to configure the network: the first argument that configures an interface, and its file.
    pub(super) fn configures_network(&self) -> Option<String> {
        self.sources.iter().find_map(|(file, line)| {
            let argument = line.configures_network()?;
            Some(if file == COMMAND_LINE {
                format!("the kernel command line configures the network with {argument}")
            } else {
                format!("/{file} configures the network with {argument}")
            })
        })
    }

    /// Returns the names that `ifname=` gives to NICs, in the order in which dracut reads them. A name that glowplug could
    /// not write is left out.
    pub(super) fn given_names(&self) -> Vec<(InterfaceName, MacAddr)> {
        let mut names = Vec::new();
        for (_, line) in &self.sources {
            for word in &line.words {
                if let Some((name, mac_address)) = word.strip_prefix("ifname=").and_then(|value| value.split_once(':'))
                    && let (Ok(name), Some(mac_address)) = (name.parse(), parse_mac_address(mac_address))
                {
                    names.push((name, mac_address));
                }
            }
        }
        names
    }

    /// Length of all files together, in bytes.
    pub(super) fn length(&self) -> usize {
        self.sources.iter().map(|(_, line)| line.length).sum()
    }
}

// === impl CommandLine ===

impl CommandLine {
    /// Reads `proc/cmdline` below a root. If the file does not exist, there are no words.
    ///
    /// # Errors
    ///
    /// The error of the system call, if the file exists.
    pub fn read_from(root: &Path) -> io::Result<Self> {
        Self::read(&root.join(COMMAND_LINE))
    }

    /// Reads a file. A file that does not exist counts as empty.
    fn read(path: &Path) -> io::Result<Self> {
        match fs::read(path) {
            Ok(bytes) => Ok(Self::parse(&String::from_utf8_lossy(&bytes))),
            Err(e) if is_absence(&e) => Ok(Self::default()),
            Err(e) => Err(e),
        }
    }

    /// Splits a line into words.
    ///
    /// ```
    /// use glowplug::guest::CommandLine;
    ///
    /// let line = CommandLine::parse("quiet ignition.platform.id=kubevirt note=\"a b\" glowplug.wait=5 glowplug.wait=7\n");
    /// assert_eq!(line.value("ignition.platform.id"), Some("kubevirt"));
    /// assert_eq!(line.value("note"), Some("a b"));
    /// assert_eq!(line.value("glowplug.wait"), Some("7"));
    /// ```
    #[must_use]
    pub fn parse(line: &str) -> Self {
        let mut words = Vec::new();
        let mut word = String::new();
        let (mut quoted, mut begun) = (false, false);
        for c in line.chars() {
            match c {
                '"' => (quoted, begun) = (!quoted, true),
                c if c.is_ascii_whitespace() && !quoted => {
                    if std::mem::take(&mut begun) {
                        words.push(std::mem::take(&mut word));
                    }
                }
                c => {
                    word.push(c);
                    begun = true;
                }
            }
        }
        if begun {
            words.push(word);
        }
        Self { words, length: line.len() }
    }

    /// Returns the value of `key=value`. The last occurrence is used, as in the kernel.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.words.iter().rev().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// Returns whether a switch is on: the line has the key alone, or with a value other than `0`, `no`, `off` or
    /// `false`. The last occurrence is used.
    ///
    /// ```
    /// use glowplug::guest::CommandLine;
    ///
    /// assert!(CommandLine::parse("quiet glowplug.debug").has_switch("glowplug.debug"));
    /// assert!(!CommandLine::parse("glowplug.debug glowplug.debug=0").has_switch("glowplug.debug"));
    /// ```
    #[must_use]
    pub fn has_switch(&self, key: &str) -> bool {
        let values = self.words.iter().rev().filter_map(|word| word.strip_prefix(key));
        let value = values.filter_map(|rest| if rest.is_empty() { Some("") } else { rest.strip_prefix('=') }).next();
        value.is_some_and(|value| !["0", "no", "off", "false"].contains(&value))
    }

    /// Returns the first argument that configures an interface. `nameserver=`, `rd.route=`, `ifname=` and `rd.neednet=`
    /// are not such arguments: they stay on the line, and our arguments are added.
    #[must_use]
    pub fn configures_network(&self) -> Option<&str> {
        let configures = |word: &&String| {
            let (key, value) = word.split_once('=').unwrap_or((word.as_str(), ""));
            matches!(key, "ip" | "bond" | "vlan" | "bridge" | "team") && !value.is_empty()
        };
        self.words.iter().find(configures).map(String::as_str)
    }

    /// Length of the whole line, in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_join_words_and_an_open_quote_extends_to_the_end_of_the_line() {
        let words = |line: &str| CommandLine::parse(line).words;
        assert_eq!(words("a  b=\"c d\"\te\n"), ["a", "b=c d", "e"]);
        assert_eq!(words("a \"b c"), ["a", "b c"]);
        assert_eq!(words("a \"\" b"), ["a", "", "b"]);
        assert_eq!(words(" \n"), Vec::<String>::new());
    }

    #[test]
    fn only_arguments_that_configure_an_interface_count_as_a_configured_network() {
        let configures = |line: &str| CommandLine::parse(line).configures_network().map(str::to_owned);
        for word in ["ip=dhcp", "bond=bond0:eth0", "vlan=v5:eth0", "bridge=br0:eth0", "team=t:eth0"] {
            assert_eq!(configures(&format!("quiet {word} x")), Some(word.to_owned()));
        }
        for line in
            ["", "ip=", "nameserver=1.1.1.1 rd.route=1.0.0.0/8:1.1.1.1 ifname=a:b rd.neednet=1", "zip=1 rd.ip=2"]
        {
            assert_eq!(configures(line), None, "{line}");
        }
    }

    #[test]
    fn an_unreadable_directory_of_arguments_is_an_error_with_its_path() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("cmdline.d", root.path().join("etc/cmdline.d")).unwrap();
        let error = Arguments::read_from(root.path(), "").unwrap_err();
        assert_eq!(error.to_string(), "/etc/cmdline.d: Too many levels of symbolic links (os error 40)");
    }

    #[test]
    fn the_files_of_dracut_are_read_in_dracuts_order_without_ours_and_afterburns() {
        let root = tempfile::tempdir().unwrap();
        for (path, line) in [
            ("run/initramfs/cmdline.d/a.conf", "ifname=e:52:54:00:00:00:05"),
            ("proc/cmdline", "glowplug.debug ifname=d:52:54:00:00:00:04\n"),
            ("etc/cmdline", "ifname=c:52:54:00:00:00:03"),
            ("etc/cmdline.d/10-b.conf", "glowplug.wait=5\nifname=b:52-54-00-00-00-02"),
            ("etc/cmdline.d/01-a.conf", "ifname=a:52:54:00:00:00:01 ifname=no ifname=x/y:52:54:00:00:00:01"),
            ("etc/cmdline.d/.hidden.conf", "ifname=f:52:54:00:00:00:06"),
            ("etc/cmdline.d/README", "ifname=g:52:54:00:00:00:07"),
            ("etc/cmdline.d/50-own.conf", "ifname=h:52:54:00:00:00:08 ip=dhcp"),
            ("etc/cmdline.d/50-afterburn-network-kargs.conf", "ifname=i:52:54:00:00:00:09 ip=auto"),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, line).unwrap();
        }
        let arguments = Arguments::read_from(root.path(), "etc/cmdline.d/50-own.conf").unwrap();
        let names = arguments.given_names().into_iter().map(|(name, mac)| format!("{name} {mac}")).collect::<Vec<_>>();
        let expected = ["a 52:54:00:00:00:01", "b 52:54:00:00:00:02", "c 52:54:00:00:00:03", "d 52:54:00:00:00:04"];
        assert_eq!(names, [&expected[..], &["e 52:54:00:00:00:05"]].concat());
        assert_eq!(arguments.configures_network(), None);
        let line = &arguments.command_line;
        assert_eq!((line.has_switch("glowplug.debug"), line.value("glowplug.wait")), (true, None));
    }
}
