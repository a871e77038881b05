//! Arrays and lists of items, handled alike.

/// Lists of arguments and results: arrays, or lists of a length that only the call knows.
pub(crate) trait Many {
    type Of<T>;

    /// Applies `f` to every item in order, up to the first error.
    fn try_map<T, U, E>(items: Self::Of<T>, f: impl FnMut(T) -> Result<U, E>) -> Result<Self::Of<U>, E>;

    fn map<T, U>(items: Self::Of<T>, f: impl FnMut(T) -> U) -> Self::Of<U>;

    fn of_refs<T>(items: &Self::Of<T>) -> Self::Of<&T>;

    fn iter<T>(items: &Self::Of<T>) -> std::slice::Iter<'_, T>;
}

/// Arrays.
pub(crate) struct Fixed<const N: usize>;

impl<const N: usize> Many for Fixed<N> {
    type Of<T> = [T; N];

    fn try_map<T, U, E>(items: [T; N], f: impl FnMut(T) -> Result<U, E>) -> Result<[U; N], E> {
        try_map(items, f)
    }

    fn map<T, U>(items: [T; N], f: impl FnMut(T) -> U) -> [U; N] {
        items.map(f)
    }

    fn of_refs<T>(items: &[T; N]) -> [&T; N] {
        items.each_ref()
    }

    fn iter<T>(items: &[T; N]) -> std::slice::Iter<'_, T> {
        items.iter()
    }
}

/// Lists.
pub(crate) struct Listed;

impl Many for Listed {
    type Of<T> = Vec<T>;

    fn try_map<T, U, E>(items: Vec<T>, f: impl FnMut(T) -> Result<U, E>) -> Result<Vec<U>, E> {
        items.into_iter().map(f).collect()
    }

    fn map<T, U>(items: Vec<T>, f: impl FnMut(T) -> U) -> Vec<U> {
        items.into_iter().map(f).collect()
    }

    fn of_refs<T>(items: &Vec<T>) -> Vec<&T> {
        items.iter().collect()
    }

    fn iter<T>(items: &Vec<T>) -> std::slice::Iter<'_, T> {
        items.iter()
    }
}

/// Applies `f` to every item in order, up to the first error.
pub(crate) fn try_map<T, U, E, const N: usize>(
    items: [T; N],
    mut f: impl FnMut(T) -> Result<U, E>,
) -> Result<[U; N], E> {
    let mut failed = None;
    let values = items.map(|item| {
        if failed.is_some() {
            return None;
        }
        f(item).map_err(|e| failed = Some(e)).ok()
    });
    match failed {
        Some(e) => Err(e),
        None => {
            Ok(values.map(|v| v.unwrap_or_else(|| unreachable!("a value is missing after an error only"))))
        }
    }
}
