//! `seeds FOLDER`: writes the seeds of each target to `FOLDER/NAME` as an initial corpus, and the words of textual
//! seeds to `FOLDER/NAME.dict`, for libFuzzer's `-dict`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, fs, io};

/// The longest word for a dictionary.
const MAX_WORD: usize = 32;

/// The words of texts, one per line; `None` if a seed is not text.
fn words(seeds: &[Vec<u8>]) -> Option<String> {
    let mut words = BTreeSet::new();
    for seed in seeds {
        let text = str::from_utf8(seed).ok().filter(|text| !text.contains('\0'))?;
        words.extend(text.split_whitespace().filter(|word| (2..=MAX_WORD).contains(&word.len())));
    }
    let escape = |byte: u8| match byte {
        b'"' | b'\\' => format!("\\{}", byte as char),
        0x20..0x7f => (byte as char).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    let line = |word: &str| format!("\"{}\"\n", word.bytes().map(escape).collect::<String>());
    Some(words.into_iter().map(line).collect())
}

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args_os().nth(1).expect("usage: seeds FOLDER"));
    for target in ashlar_fuzz::TARGETS {
        let seeds = (target.seeds)();
        let corpus = folder.join(target.name);
        fs::create_dir_all(&corpus)?;
        if let Some(words) = words(&seeds) {
            fs::write(folder.join(format!("{}.dict", target.name)), words)?;
        }
        for (n, seed) in seeds.into_iter().enumerate() {
            fs::write(corpus.join(format!("seed-{n:04}")), seed)?;
        }
    }
    Ok(())
}
