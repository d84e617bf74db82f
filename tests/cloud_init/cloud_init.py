"""Prints how cloud-init understands documents.

Each line of the input is a JSON object: {"format": "openstack" or "nocloud", "text": ...} for the text of a document,
or "tree" in place of "text" for the values of a document. The first line of the output is the version of cloud-init.
Then the script prints a line for each object: {"read": …, "understood": …}. "read" has the values of the document;
"understood" is {"links": …, "routes": …, "dns": …}, {"refused": why} or {"disabled": true}.

The script does not read the NICs of this machine. It pretends that every NIC that the document identifies by a MAC address
exists, with the name nic0, nic1 and so on until the document gives the NIC a name.
"""

import copy
import ipaddress
import json
import logging
import sys

# The package that tests/setup unpacked takes precedence over an installed package.
sys.path[:0] = sys.argv[1:]

from cloudinit import net, util, version
from cloudinit.net import network_state
from cloudinit.sources.helpers import openstack

logging.disable(logging.CRITICAL)

# Disable the debug output, which takes most of the time that cloud-init needs for a document.
network_state.NetworkStateInterpreter.dump_network_state = lambda self: None

NIC = "nic"

# Members of each bond in the order of the document. The state of cloud-init does not keep this order.
bonds = {}
handle_bond = network_state.NetworkStateInterpreter.handle_bond


def remember_bond(self, command):
    bonds[command.get("name")] = list(command.get("bond_interfaces") or [])
    return handle_bond(self, command)


network_state.NetworkStateInterpreter.handle_bond = remember_bond
network_state.NetworkStateInterpreter.command_handlers["bond"] = remember_bond

# Words for values of the kernel's bonding driver, in the order of their numbers, and words for `stp` of a bridge.
WORDS = {
    "mode": ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"],
    "lacp_rate": ["slow", "fast"],
    "xmit_hash_policy": ["layer2", "layer3+4", "layer2+3"],
    "stp": ["False", "True"],
}
OPTIONS = {"ageing": "ageing_time", "bridgeprio": "priority", "fd": "forward_delay", "hello": "hello_time",
           "maxage": "max_age", "pathcost": "path_cost", "portprio": "port_priority"}
DYNAMIC = {"ipv6_slaac": (1, "slaac"), "ipv6_dhcpv6-stateless": (2, "dhcp6-stateless"), "dhcp6": (3, "dhcp6"),
           "ipv6_dhcpv6-stateful": (3, "dhcp6")}


def read(request):
    """Returns the values of a document, as the data source of cloud-init reads them."""
    if "tree" in request:
        return request["tree"]
    if request["format"] == "openstack":
        return util.load_json(request["text"])
    return util.load_yaml(request["text"], default=unreadable)


def convert(request, tree):
    """Returns the network config that the data source of cloud-init makes from the values."""
    if request["format"] == "openstack":
        macs = [link.get("ethernet_mac_address") for link in tree.get("links") or [] if isinstance(link, dict)]
        macs = {mac.lower(): f"{NIC}{at}" for at, mac in reversed(list(enumerate(macs))) if isinstance(mac, str)}
        return openstack.convert_net_json(tree, known_macs=macs)
    if tree is unreadable:
        raise ValueError("not readable")
    # cloudinit.stages does the same. An import of that module would load all of cloud-init.
    return tree["network"] if tree and "network" in tree else tree


unreadable = object()


def present(config):
    """Pretends that the NICs of a version 2 document exist."""
    ethernets = config.get("ethernets") or {}
    names = {}
    for at, nic in enumerate(ethernets.values()):
        mac = (nic.get("match") or {}).get("macaddress")
        if mac:
            names.setdefault(str(mac).lower(), nic.get("set-name") or f"{NIC}{at}")
    network_state.get_interfaces_by_mac = lambda: names
    network_state.find_interface_name_from_mac = lambda mac: names.get(mac.lower())


def answer(request, tree):
    bonds.clear()
    config = convert(request, tree)
    if not config:
        return {"links": {}, "routes": [], "dns": dns([], [])}
    if net.is_disabled_cfg(config):
        return {"disabled": True}
    if config.get("version") == 2:
        present(config)
    return meaning(network_state.parse_net_config_data(config))


def meaning(state):
    interfaces = {interface["name"]: interface for interface in state.iter_interfaces()}
    links = {}
    for interface in interfaces.values():
        links[key(interfaces, interface["name"])] = link(interfaces, interface)
    return {
        "links": links,
        "routes": sorted(map(route, state.iter_routes())),
        "dns": dns(state.dns_nameservers, state.dns_searchdomains),
    }


def kind(interface):
    if "bond-slaves" in interface:
        return "bond"
    if "bridge_ports" in interface:
        return "bridge"
    return "vlan" if "vlan-raw-device" in interface else "nic"


def ports(interfaces, interface):
    if kind(interface) == "bridge":
        return interface["bridge_ports"]
    return bonds.get(interface["name"], [])


def key(interfaces, name, depth=0):
    """Returns the key of a link. Only the key of a bridge or of a NIC without a MAC address depends on the name."""
    interface = interfaces.get(name)
    if interface is None or depth > 8:
        return str(name)
    what = kind(interface)
    if what == "nic":
        return str(interface["mac_address"] or name).lower() if interface["mac_address"] else str(name)
    if what == "vlan":
        return f"vlan {interface['vlan_id']} on {key(interfaces, interface['vlan-raw-device'], depth + 1)}"
    if what == "bond":
        return "bond of " + ", ".join(sorted(key(interfaces, port, depth + 1) for port in ports(interfaces, interface)))
    return f"bridge {name}"


def mac_address(interfaces, interface):
    """Returns the own MAC address of a link, or else the MAC address of its parent or first port."""
    if interface is None or interface["mac_address"]:
        return interface and interface["mac_address"].lower()
    below = [interface["vlan-raw-device"]] if kind(interface) == "vlan" else ports(interfaces, interface)
    return mac_address(interfaces, interfaces.get(below[0])) if below and kind(interface) != "nic" else None


def link(interfaces, interface):
    what = kind(interface)
    name = str(interface["name"])
    out = {"addresses": [], "routes": [], "dhcp4": False, "dynamic6": None, "metric4": None, "metric6": None}
    out["accept_ra"] = interface["accept-ra"]
    out["mtu"] = None if interface["mtu"] is None else int(interface["mtu"])
    out["name"] = None if name.startswith(NIC) and name[len(NIC):].isdigit() else name
    out["mac"] = None
    if what != "nic" and interface["mac_address"]:
        inherited = mac_address(interfaces, {**interface, "mac_address": None})
        mac = interface["mac_address"].lower()
        out["mac"] = mac if mac != inherited else None
    if what == "vlan" and interface["vlan-raw-device"] in interfaces:
        if name == f"{interface['vlan-raw-device']}.{interface['vlan_id']}":
            out["name"] = None
    if what in ("bond", "bridge"):
        out["options"] = dict(options(interfaces, interface, what))
        if what == "bridge":
            out["ports"] = sorted(key(interfaces, port) for port in ports(interfaces, interface))
    servers, search = [], []
    dynamic = (0, None)
    for subnet in interface["subnets"]:
        servers += subnet.get("dns_nameservers", [])
        search += subnet.get("dns_search", [])
        metric = subnet.get("metric")
        metric = None if metric is None else int(metric)
        word = subnet.get("type")
        if word in ("dhcp", "dhcp4"):
            out["dhcp4"] = True
            out["metric4"] = metric if out["metric4"] is None else out["metric4"]
        elif word in DYNAMIC:
            dynamic = max(dynamic, DYNAMIC[word])
            out["metric6"] = metric if out["metric6"] is None else out["metric6"]
        elif word in ("static", "static6"):
            out["addresses"].append(f"{address(subnet.get('address', subnet.get('ip_address')))}/{subnet['prefix']}")
        gateway = subnet.get("gateway")
        if gateway:
            everywhere = "::" if ":" in str(gateway) else "0.0.0.0"
            out["routes"].append(route({"network": everywhere, "prefix": 0, "gateway": gateway, "metric": metric}))
        out["routes"] += map(route, subnet["routes"])
    own = interface.get("dns", {})
    servers += own.get("addresses", own.get("nameservers", []))
    search += own.get("search", [])
    out["dynamic6"] = dynamic[1]
    out["dns"] = dns(servers, search)
    out["addresses"] = sorted(set(out["addresses"]))
    out["routes"] = sorted(set(out["routes"]))
    return out


def options(interfaces, interface, what):
    for name, value in interface.items():
        if not name.startswith((what + "-", what + "_")) or name[len(what) + 1:] in ("slaves", "master", "ports"):
            continue
        name = name[len(what) + 1:].replace("-", "_")
        name = OPTIONS.get(name, name)
        if name in ("path_cost", "port_priority") and not isinstance(value, dict):
            value = dict(pair.split() for pair in ([value] if isinstance(value, str) else value))
        if isinstance(value, dict):
            value = " ".join(sorted(f"{key(interfaces, port)}={number}" for port, number in value.items()))
        elif isinstance(value, list):
            value = ",".join(map(str, value))
        value = str(value)
        if name in WORDS and value.isdigit() and int(value) < len(WORDS[name]):
            value = WORDS[name][int(value)]
        if name == "primary":
            value = key(interfaces, value)
        yield name, value


def route(route):
    to = ipaddress.ip_network(f"{route['network']}/{route['prefix']}", strict=False)
    text = str(to)
    if route.get("gateway"):
        text += f" via {address(route['gateway'])}"
    if route.get("metric") is not None:
        text += f" metric {route['metric']}"
    return text


def address(text):
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return str(text)


def dns(servers, search):
    return {"servers": list(dict.fromkeys(map(address, servers))), "search": list(dict.fromkeys(map(str, search)))}


def main():
    print(version.version_string(), flush=True)
    for line in sys.stdin:
        told = {"read": None}
        try:
            request = json.loads(line)
            tree = read(request)
            # The conversion changes the tree, so copy the tree first.
            told["read"] = None if tree is unreadable else copy.deepcopy(tree)
            told["understood"] = answer(request, tree)
        except Exception as why:  # cloud-init makes no network of a document that causes an exception
            told["understood"] = {"refused": f"{type(why).__name__}: {why}"}
        print(json.dumps(told, default=str), flush=True)


main()
