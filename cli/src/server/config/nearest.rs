//! The known name that is nearest to one that is not known.

/// The nearest of `known`, if one is near enough to have been meant.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (name.chars().count() / 3).max(1);
    let with_distance = known
        .into_iter()
        .map(|other| (distance(name, other), other));
    let best = with_distance.min_by_key(|(distance, _)| *distance);
    best.filter(|(distance, _)| *distance <= most)
        .map(|(_, other)| other)
}

/// Single characters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &right) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_near() {
        let known = ["server.host", "server.port", "sampling.top_k"];
        assert_eq!(nearest("server.prt", known), Some("server.port"));
        assert_eq!(nearest("sampling.topk", known), Some("sampling.top_k"));
        assert_eq!(nearest("temperature", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
