//! Which addresses of the network are public: nothing else is ever asked for a picture.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is one of the public network, whichever way it is written.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let reserved = a == 0
        || a == 10
        || a == 127
        // Shared by the customers of a carrier (RFC 6598).
        || a == 100 && (64..128).contains(&b)
        || a == 169 && b == 254
        || a == 172 && (16..32).contains(&b)
        || a == 192 && b == 168
        // Protocol assignments, documentation, the old relays of 6to4, benchmarks (RFC 6890).
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 0, 2)
        || (a, b, c) == (192, 88, 99)
        || a == 198 && (b == 18 || b == 19)
        || (a, b, c) == (198, 51, 100)
        || (a, b, c) == (203, 0, 113)
        // Multicast, reserved, broadcast.
        || a >= 224;
    !reserved
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Global unicast is 2000::/3; loopback, mapped, compatible, NAT64, local and multicast forms lie outside of it.
    let segments = address.segments();
    let special = match segments {
        // Teredo, ORCHID, benchmarks and the other assignments of 2001::/23.
        [0x2001, second, ..] if second < 0x200 => true,
        // 6to4 carries an IPv4 address.
        [0x2002, ..]
        // Documentation.
        |         [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => true,
        _ => false,
    };
    segments[0] & 0xe000 == 0x2000 && !special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_network_is_public() {
        for private in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "192.88.99.1",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "100::1",
            "5f00::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in [
            "8.8.8.8",
            "1.1.1.1",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "2606:4700::1111",
            "2a00:1450::1",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }
}
