//! The names of blocks of prompts: digests of all that their keys and values depend on.

use cider_kernels::KV_BLOCK;
use sha2::{Digest, Sha256};

/// The name of a block: the SHA-256 of the salt, all tokens up to the block's last, and the pictures among them.
///
/// Prompts come from strangers and blocks are shared between requests, so nobody must be able to make two
/// beginnings collide. Positions follow from tokens and pictures, so they need no place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PrefixDigest([u8; 32]);

/// A picture in a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedDigest {
    /// The place of its first token.
    pub(crate) start: usize,
    /// Its tokens.
    pub(crate) tokens: usize,
    /// What tells it from all others.
    pub(crate) digest: [u8; 32],
}

/// The names of the full blocks of a prompt, in order.
pub(crate) fn prefix_digests(
    salt: &[u8; 32],
    prompt: &[u32],
    images: &[PlacedDigest],
) -> Vec<PrefixDigest> {
    let blocks = prompt.chunks_exact(KV_BLOCK).enumerate();
    let mut parent = *salt;
    let digests = blocks.map(|(number, ids)| {
        let start = number * KV_BLOCK;
        let mut hash = Sha256::new();
        hash.update(parent);
        for id in ids {
            hash.update(id.to_le_bytes());
        }
        // Tokens have a fixed length, so what follows them is pictures, each of a fixed length too.
        for image in images {
            if image.start < start + KV_BLOCK && start < image.start + image.tokens {
                hash.update((image.start as u64).to_le_bytes());
                hash.update((image.tokens as u64).to_le_bytes());
                hash.update(image.digest);
            }
        }
        parent = hash.finalize().into();
        PrefixDigest(parent)
    });
    digests.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Whatever keys and values depend on makes another name, in its block and in all behind it.
    #[test]
    fn names_depend_on_all_before() {
        let prompt = [5; 300];
        let image = PlacedDigest {
            start: 100,
            tokens: 60,
            digest: [1; 32],
        };
        let plain = prefix_digests(&[0; 32], &prompt, &[]);
        assert_eq!(plain.len(), 4);
        assert_eq!(prefix_digests(&[0; 32], &prompt[..256], &[]), plain);
        assert_eq!(prefix_digests(&[0; 32], &prompt[..63], &[]), []);
        let mut other = prompt;
        other[70] = 6;
        let moved = PlacedDigest {
            start: 101,
            ..image
        };
        let unlike = PlacedDigest {
            digest: [2; 32],
            ..image
        };
        let cases = [
            (0, prefix_digests(&[9; 32], &prompt, &[])),
            (1, prefix_digests(&[0; 32], &other, &[])),
            (1, prefix_digests(&[0; 32], &prompt, &[image])),
            (1, prefix_digests(&[0; 32], &prompt, &[moved])),
            (1, prefix_digests(&[0; 32], &prompt, &[unlike])),
        ];
        let mut seen: HashSet<_> = plain.iter().copied().collect();
        for (same, names) in cases {
            assert_eq!(names[..same], plain[..same]);
            for name in &names[same..] {
                assert!(seen.insert(*name), "a name that was there");
            }
        }
    }
}
