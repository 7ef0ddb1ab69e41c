//! The indexes that one thread can change while another asks.

use std::{sync::Arc, thread::sleep, time::Duration};

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};
use kvtide_benches::{hashed, open};
use kvtide_radix::{BlockHash, Event, Overlap, RankSettings, RankSlot, Reader, Writer};

use crate::stream::RANKS;

/// The one that changes the index.
pub(crate) trait Changes: Send {
    /// An event in the form that the index takes.
    type Event: Sync;

    fn event(rank: usize, event: &Event) -> Self::Event;
    /// Makes one version of these events, where the index has versions.
    fn update(&mut self, events: &[Self::Event]);
}

/// The one that asks.
pub(crate) trait Asks: Send {
    /// Finds every rank's reach. Returns how many ranks have any.
    fn ask(&mut self, prompt: &[BlockHash]) -> usize;
    /// Asks, and falls asleep before it lets go of what it asked.
    fn ask_and_sleep(&mut self, prompt: &[BlockHash], time: Duration) -> usize;
}

pub(crate) struct KvtideWriter {
    writer: Writer,
    slots: Vec<RankSlot>,
}

pub(crate) struct KvtideReader {
    reader: Reader,
    answer: Overlap,
}

pub(crate) fn kvtide() -> (KvtideWriter, KvtideReader) {
    let (writer, reader, slots) = open(RANKS, &RankSettings::default());
    (KvtideWriter { writer, slots }, KvtideReader { reader, answer: Overlap::default() })
}

impl Changes for KvtideWriter {
    type Event = (usize, Event);

    fn event(rank: usize, event: &Event) -> Self::Event {
        (rank, event.clone())
    }

    fn update(&mut self, events: &[Self::Event]) {
        self.writer.update(|update| {
            for (rank, event) in events {
                update.apply(self.slots[*rank], event);
            }
        });
    }
}

impl Asks for KvtideReader {
    fn ask(&mut self, prompt: &[BlockHash]) -> usize {
        self.reader.view().overlap([prompt], &mut self.answer);
        self.answer.len()
    }

    fn ask_and_sleep(&mut self, prompt: &[BlockHash], time: Duration) -> usize {
        let view = self.reader.view();
        view.overlap([prompt], &mut self.answer);
        sleep(time);
        drop(view);
        self.answer.len()
    }
}

pub(crate) struct KvIndexWriter {
    index: Arc<ChainIndex>,
    workers: Vec<(u32, ChainBlockMap)>,
}

pub(crate) struct KvIndexReader {
    index: Arc<ChainIndex>,
    answer: Vec<(u32, u32)>,
}

/// An event of `kv-index`.
pub(crate) enum KvIndexEvent {
    Stored(Option<SequenceHash>, Vec<StoredBlock>),
    Removed(Vec<SequenceHash>),
    Cleared,
}

pub(crate) fn kv_index() -> (KvIndexWriter, KvIndexReader) {
    let index = Arc::new(ChainIndex::with_max_workers(RANKS));
    let worker = |rank: usize| {
        let worker = index.intern_worker(&rank.to_string()).expect("no more workers than it was made for");
        (worker, ChainBlockMap::new())
    };
    let workers = (0..RANKS).map(worker).collect();
    (KvIndexWriter { index: Arc::clone(&index), workers }, KvIndexReader { index, answer: Vec::new() })
}

impl Changes for KvIndexWriter {
    type Event = (usize, KvIndexEvent);

    fn event(rank: usize, event: &Event) -> Self::Event {
        let name = |name: kvtide_radix::SequenceHash| SequenceHash(name.0);
        let event = match event {
            Event::Stored(stored) => {
                let blocks = hashed(stored).iter().map(|block| StoredBlock {
                    seq_hash: name(block.name),
                    content_hash: ContentHash(block.content.0),
                });
                KvIndexEvent::Stored(stored.parent.map(name), blocks.collect())
            }
            Event::Removed(removed) => {
                KvIndexEvent::Removed(removed.names.iter().copied().map(name).collect())
            }
            Event::Cleared => KvIndexEvent::Cleared,
        };
        (rank, event)
    }

    fn update(&mut self, events: &[Self::Event]) {
        for (rank, event) in events {
            let (worker, map) = &mut self.workers[*rank];
            match event {
                KvIndexEvent::Stored(parent, blocks) => {
                    let stored = self.index.apply_stored(*worker, blocks, *parent, map);
                    stored.expect("the stream names parents that are held");
                }
                KvIndexEvent::Removed(names) => self.index.apply_removed(*worker, names, map),
                KvIndexEvent::Cleared => self.index.apply_cleared(*worker, map),
            }
        }
    }
}

impl Asks for KvIndexReader {
    fn ask(&mut self, prompt: &[BlockHash]) -> usize {
        self.answer.clear();
        let note = |worker, blocks| self.answer.push((worker, blocks));
        self.index.score_into(prompt, |hash| hash.0, false, note);
        self.answer.len()
    }

    /// It has no view that could be held, so that only the sleep is left.
    fn ask_and_sleep(&mut self, prompt: &[BlockHash], time: Duration) -> usize {
        let matching = self.ask(prompt);
        sleep(time);
        matching
    }
}
