//! Parses the kernel command line.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::{fs, str};

/// Words of a kernel command line. As in the kernel, blanks separate words, except between double quotes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CommandLine {
    words: Vec<String>,
    length: usize,
}

// === impl CommandLine ===

impl CommandLine {
    /// Reads `proc/cmdline` below a root. If the file does not exist, there are no words.
    ///
    /// # Errors
    ///
    /// The error of the system call, if the file exists.
    pub fn read_from(root: &Path) -> io::Result<Self> {
        match fs::read(root.join("proc/cmdline")) {
            Ok(bytes) => Ok(Self::parse(&String::from_utf8_lossy(&bytes))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Self::default()),
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
}
