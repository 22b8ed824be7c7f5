//! Seeded randomness. `SplitMix64` (Steele, Lea, Flood 2014, as in Vigna's public-domain reference):
//! its output is fixed by its definition, so seeds survive any change of dependencies.

/// A `SplitMix64` generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose whole sequence follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, uniform up to 2^-64 (Lemire's multiply-shift); 0 where `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next_u64()) * (bound as u128);
        (wide >> 64) as usize
    }

    /// A number from 0 to below 1, of 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The generator's state, for the decision record.
    #[must_use]
    pub fn state(&self) -> u64 {
        self.0
    }
}

/// The finaliser of `SplitMix64`: spreads every input bit over the output.
#[must_use]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn sequence_is_the_published_one() {
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn below_stays_below() {
        let mut rng = Rng::new(7);
        let mut seen = [0_u32; 5];
        for _ in 0..5_000 {
            seen[rng.below(5)] += 1;
        }
        assert!(seen.iter().all(|n| (800..1_200).contains(n)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }
}
