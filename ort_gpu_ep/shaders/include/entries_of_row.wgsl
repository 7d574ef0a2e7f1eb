// Which of a row's sparse entries (formats.py) are this invocation's: from `begin` to `end`, of `count` from `first` on.
// Expects: row and lane, starts ([rows + 1]: first entry of a row), K (elements of a row), ENTRIES.
    let first = min(u32(starts_at(row)), ENTRIES);      // whatever a broken file says, no row has more entries than elements
    let count = clamp(u32(starts_at(row + 1u)), first, min(first + K, ENTRIES)) - first;
    let share = (count + WORKGROUP_SIZE - 1u) / WORKGROUP_SIZE;
    let begin = first + min(lane * share, count);
    let end = first + min(lane * share + share, count);
