//! The one door to atomics: everything by which the writer and readers meet.
//!
//! Under `--cfg kvtide_loom` the same protocol runs on loom's types, which try every order of its steps
//! (`tests/models.rs`). [`Slot`] is then a lock around the pointer: what is modelled is what the tree does with it, and
//! `arc-swap` is taken to do what it says.

#[cfg(not(kvtide_loom))]
mod door {
    pub(crate) use std::{
        hint::spin_loop,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
    };

    use arc_swap::ArcSwap;

    /// Keeps what it points to alive and unchanged while it is there.
    pub(crate) type Guard<T> = arc_swap::Guard<Arc<T>>;

    /// A pointer that is read without waiting while another takes its place.
    pub(crate) struct Slot<T>(ArcSwap<T>);

    impl<T> Slot<T> {
        pub(crate) fn new(value: Arc<T>) -> Slot<T> {
            Slot(ArcSwap::new(value))
        }

        pub(crate) fn load(&self) -> Guard<T> {
            self.0.load()
        }

        /// Replaces the pointer. Whoever still reads through the old one is counted in it from now on.
        pub(crate) fn swap(&self, value: Arc<T>) -> Arc<T> {
            self.0.swap(value)
        }
    }
}

#[cfg(kvtide_loom)]
mod door {
    pub(crate) use loom::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        thread::yield_now as spin_loop,
    };

    use loom::sync::Mutex;

    pub(crate) type Guard<T> = Arc<T>;

    pub(crate) struct Slot<T>(Mutex<Arc<T>>);

    #[expect(clippy::unwrap_used, reason = "a model in which a thread has panicked has failed already")]
    impl<T> Slot<T> {
        pub(crate) fn new(value: Arc<T>) -> Slot<T> {
            Slot(Mutex::new(value))
        }

        pub(crate) fn load(&self) -> Guard<T> {
            Arc::clone(&self.0.lock().unwrap())
        }

        pub(crate) fn swap(&self, value: Arc<T>) -> Arc<T> {
            std::mem::replace(&mut *self.0.lock().unwrap(), value)
        }
    }
}

pub(crate) use door::{Arc, AtomicU64, Guard, Ordering, Slot, spin_loop};
