//! The random numbers of sampling: xoshiro256++ by David Blackman and Sebastiano Vigna, seeded
//! with `SplitMix64` as its authors advise (<https://prng.di.unimi.it>).

/// A stream of random numbers that its seed alone decides.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut counter = seed;
        let mut next = || {
            counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = counter;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self {
            state: [next(), next(), next(), next()],
        }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number in [0, 1), a multiple of 2^-53.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (-53_f64).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the generators' reference programs.
    #[test]
    fn known_answers() {
        assert_eq!(
            Random::new(1_234_567).state,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
            ]
        );
        let mut random = Random {
            state: [1, 2, 3, 4],
        };
        let expected = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
        ];
        assert_eq!(expected.map(|_| random.next()), expected);
    }

    #[test]
    fn unit_stays_below_one() {
        let mut random = Random::new(0);
        let draws: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = draws.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.015, "mean {mean}");
    }
}
