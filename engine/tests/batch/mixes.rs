//! Random mixes of requests.

use cider::generate::SamplingParams;
use cider::{BatchRequest, DType, Engine, EngineOptions, Request, RequestId, Scheme, Step};

use crate::machine::best;
use crate::support::{Random, Running, Size, engine_options, f_tiny, ids, open_on, request};

/// What the requests of a mix are made of; the same numbers make the same request.
#[derive(Clone)]
struct Recipe {
    prompt: Vec<u32>,
    max_tokens: usize,
    sampling: SamplingParams,
}

impl Recipe {
    /// Some begin as others do, over several blocks.
    fn random(random: &mut Random) -> Self {
        let family = random.below(3) as u64;
        let common = random.below(260);
        let mut prompt = ids(family, common);
        let own = 1 + random.below(120);
        prompt.extend(random.ids(own));
        let sampling = SamplingParams {
            temperature: [0.0, 0.9][random.below(2)],
            top_k: [0, 20][random.below(2)],
            repetition_penalty: [1.0, 1.2][random.below(2)],
            seed: Some(random.below(1000) as u64),
            ..SamplingParams::default()
        };
        Self {
            prompt,
            max_tokens: 1 + random.below(90),
            sampling,
        }
    }

    fn request(&self) -> BatchRequest {
        BatchRequest {
            sampling: self.sampling.clone(),
            ..request(self.prompt.clone(), self.max_tokens)
        }
    }
}

/// Requests that come when they like, some of which are ended, on engines of several sizes; the smallest has room
/// for little more than one.
#[test]
fn every_answer_is_that_of_its_lone_run() {
    let sizes = [
        (512, 32, 16_384),
        (64, 8, 2048),
        (40, 20, 1024),
        (16, 4, 576),
    ];
    for (scheme, dtype) in [(Scheme::W8A8, DType::Bf16), (Scheme::None, DType::F32)] {
        let options = engine_options(scheme, dtype, 512);
        let mut lone = Running::new(open_on(f_tiny(), best(), &options, Size::LARGE));
        let mut preemptions = 0;
        for (seed, (rows, running, tokens)) in sizes.into_iter().enumerate() {
            let size = Size {
                rows,
                running,
                tokens,
            };
            let options = engine_options(scheme, dtype, rows);
            let mut mix = Running::new(open_on(f_tiny(), best(), &options, size));
            for round in 0..2 {
                let mut random = Random::new(100 + 10 * seed as u64 + round);
                let recipes: Vec<_> = (0..24).map(|_| Recipe::random(&mut random)).collect();
                let asked = run_mix(&mut mix, &mut random, &recipes);
                for (id, recipe) in asked.into_iter().zip(&recipes) {
                    let what = format!("{scheme} {dtype}, {rows} rows, round {round}, {id}");
                    let expected = lone.alone(recipe.request());
                    mix.taken(id).assert_same(&expected, &what);
                }
            }
            preemptions += mix.engine.stats().preemptions;
            assert!(mix.engine.stats().prefix_hits > 0);
        }
        assert!(preemptions > 10, "{preemptions} requests made room");
    }
}

/// Submits by and by, ends some, and runs to the end.
fn run_mix(mix: &mut Running, random: &mut Random, recipes: &[Recipe]) -> Vec<RequestId> {
    let mut asked = Vec::new();
    while asked.len() < recipes.len() || mix.step() == Step::Worked {
        if let Some(recipe) = recipes.get(asked.len()) {
            asked.push(mix.submit(recipe.request()));
        }
        for _ in 0..random.below(6) {
            mix.step();
        }
        if random.below(12) == 0 {
            mix.engine.cancel(asked[random.below(asked.len())]);
        }
    }
    mix.run();
    asked
}

/// The engine that answers one request at a time says the same.
#[test]
fn answers_are_those_of_the_plain_engine() {
    let options = engine_options(Scheme::W8A8, DType::Bf16, 512);
    let mut plain = Engine::open(f_tiny(), best(), &options, &mut |_| {}).unwrap();
    let small = EngineOptions { ..options };
    let size = Size {
        rows: 512,
        running: 16,
        tokens: 4096,
    };
    let mut mix = Running::new(open_on(f_tiny(), best(), &small, size));
    let mut random = Random::new(7);
    let recipes: Vec<_> = (0..16).map(|_| Recipe::random(&mut random)).collect();
    let with_ends = |recipe: &Recipe| BatchRequest {
        ignore_eos: false,
        ..recipe.request()
    };
    let asked: Vec<_> = recipes
        .iter()
        .map(|one| mix.submit(with_ends(one)))
        .collect();
    mix.run();
    for (id, recipe) in asked.into_iter().zip(recipes) {
        let found = mix.taken(id);
        plain.forget();
        let request = Request {
            sampling: recipe.sampling,
            max_tokens: Some(recipe.max_tokens),
            ..Request::new(recipe.prompt)
        };
        let expected = plain.generate(&request, &mut |_| {}).unwrap();
        let found = found.outcome();
        assert_eq!(found.tokens, expected.tokens, "{id}");
        assert_eq!(found.text, expected.text, "{id}");
        assert_eq!(found.reason, expected.reason, "{id}");
        assert_eq!(found.seed, expected.seed, "{id}");
    }
}
