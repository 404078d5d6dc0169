//! The vision tower in other formats (`--vision-scheme`).

use cider::generate::RunnerOptions;
use cider::{DType, Quantization, Scheme};

use crate::support::{Prompt, best, distance, fixture, open_with, options};

/// The tower quantised, the decoder not: the logits stay near and the weights shrink.
#[test]
fn a_quantised_tower_stays_near() {
    for (name, dtype) in [
        ("tiny", DType::F32),
        ("late", DType::F32),
        ("tiny", DType::Bf16),
    ] {
        let with = |vision: Scheme| RunnerOptions {
            vision: Quantization::of(vision),
            ..options(Scheme::None, dtype)
        };
        let mut float = open_with(&fixture(name), best(), with(Scheme::None)).unwrap();
        for (scheme, bound) in [
            (Scheme::W8A16, 0.05),
            (Scheme::W8A8, 0.1),
            (Scheme::W4A16, 0.5),
        ] {
            let mut engine = open_with(&fixture(name), best(), with(scheme)).unwrap();
            let [small, large] = [&engine, &float].map(|e| e.runner().weight_bytes());
            println!("{name}, {scheme}: {small} of {large} bytes");
            assert!(small < large, "{name}, {scheme}: {small} of {large} bytes");
            for prompt in Prompt::all(name) {
                let expected = prompt.see(&mut float).logits(&mut float);
                let found = prompt.see(&mut engine).logits(&mut engine);
                let distance = distance(&found, &expected);
                println!("{name}, {dtype}, {}, {scheme}: {distance:e}", prompt.name);
                assert!(
                    distance <= bound,
                    "{name}, {}, {scheme}: {distance:e}",
                    prompt.name
                );
                assert_eq!(
                    distance == 0.0,
                    prompt.pictures.is_empty(),
                    "{}",
                    prompt.name
                );
            }
        }
    }
}
