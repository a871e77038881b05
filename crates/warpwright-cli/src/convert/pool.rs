//! Tasks on all cores, which may bring further tasks with them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::interrupt;

/// Threads that work at a time: one for each core, and two even on a single core, so that one reads while the other computes.
/// More than 16 only wait for the same memory and the same link.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 16))
}

/// Runs `tasks` in their order on `threads` threads, each with a worker of its own, until none is left. Tasks that a task
/// returns go before those that have not begun, so that what belongs together ends early.
///
/// # Errors
/// Of the tasks that failed, the error of the one that stands first in `tasks` (or came of it): what is reported does not depend
/// on which thread was faster. [`Error::Interrupted`] if the user wants to end. No task begins after either.
pub fn run<T: Send, W>(
    tasks: Vec<T>,
    threads: usize,
    worker: impl Fn() -> Result<W, Error> + Sync,
    work: impl Fn(&mut W, T) -> Result<Vec<T>, Error> + Sync,
) -> Result<(), Error> {
    let queue = Queue {
        state: Mutex::new(State {
            waiting: tasks.into_iter().enumerate().collect(),
            running: 0,
            failure: None,
        }),
        changed: Condvar::new(),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut worker = match worker() {
                    Ok(worker) => worker,
                    Err(error) => return queue.fail(0, error),
                };
                while let Some((origin, task)) = queue.next() {
                    let running = Running(&queue);
                    let outcome = interrupt::check().and_then(|()| work(&mut worker, task));
                    match outcome {
                        Ok(more) => queue.add(origin, more),
                        Err(error) => queue.fail(origin, error),
                    }
                    drop(running);
                }
            });
        }
    });
    let state = queue.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    state.failure.map_or(Ok(()), |(_, error)| Err(error))
}

struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    /// Tasks, with the position of the one that they came of.
    waiting: VecDeque<(usize, T)>,
    running: usize,
    failure: Option<(usize, Error)>,
}

impl<T> Queue<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task; waits while those that run may bring more.
    fn next(&self) -> Option<(usize, T)> {
        let mut state = self.state();
        loop {
            if state.failure.is_some() {
                return None;
            }
            if let Some(task) = state.waiting.pop_front() {
                state.running += 1;
                return Some(task);
            }
            if state.running == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn add(&self, origin: usize, tasks: Vec<T>) {
        let mut state = self.state();
        tasks.into_iter().rev().for_each(|task| state.waiting.push_front((origin, task)));
    }

    fn fail(&self, origin: usize, error: Error) {
        let mut state = self.state();
        // An interruption is what the user asked for, whatever else went wrong.
        let origin = if matches!(error, Error::Interrupted { .. }) { 0 } else { origin };
        if state.failure.as_ref().is_none_or(|(first, _)| origin < *first) {
            state.failure = Some((origin, error));
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// A task that has been taken; also one that panics ends, or the others would wait for it for ever.
struct Running<'a, T>(&'a Queue<T>);

impl<T> Drop for Running<'_, T> {
    fn drop(&mut self) {
        self.0.state().running -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn tasks_bring_tasks_and_all_are_done() {
        let sum = AtomicUsize::new(0);
        // Each number brings the one below it.
        let add = |_: &mut (), n: usize| {
            sum.fetch_add(n, Ordering::Relaxed);
            Ok(if n == 0 { vec![] } else { vec![n - 1] })
        };
        run((0..100).collect(), 7, || Ok(()), add).unwrap();
        let expected: usize = (0..100).map(|n| n * (n + 1) / 2).sum();
        assert_eq!(sum.into_inner(), expected);
    }

    #[test]
    fn what_a_task_brings_goes_first() {
        let order = Mutex::new(Vec::new());
        let note = |_: &mut (), (name, left): (char, u32)| {
            order.lock().unwrap().push((name, left));
            Ok(if left == 0 { vec![] } else { vec![(name, left - 1)] })
        };
        run(vec![('a', 2), ('b', 1)], 1, || Ok(()), note).unwrap();
        assert_eq!(order.into_inner().unwrap(), [('a', 2), ('a', 1), ('a', 0), ('b', 1), ('b', 0)]);
    }

    #[test]
    fn the_first_of_several_failures_is_reported_and_nothing_begins_after_it() {
        for _ in 0..50 {
            let began = AtomicUsize::new(0);
            let fail = |_: &mut (), n: usize| {
                began.fetch_add(1, Ordering::Relaxed);
                if n < 3 {
                    return Ok(vec![]);
                }
                // The first failure is the slowest.
                std::thread::sleep(std::time::Duration::from_micros(if n == 3 { 300 } else { 0 }));
                Err(Error::usage(n.to_string(), ""))
            };
            let error = run((0..1000).collect(), 4, || Ok(()), fail).unwrap_err();
            assert_eq!(error.to_string(), "3");
            assert!(began.into_inner() < 20);
        }
    }

    #[test]
    fn a_worker_that_cannot_be_made_ends_the_work() {
        let work = |_: &mut (), _: u8| Ok(vec![]);
        let error = run(vec![1, 2, 3], 3, || Err(Error::usage("no worker", "")), work).unwrap_err();
        assert_eq!(error.to_string(), "no worker");
    }
}
