//! Ranks as a table: which of them, in which order, and how each reads.

use std::cmp::{Ordering, Reverse};

use clap::ValueEnum;
use kvtide::{KnowledgeState, Reason, service::Worker};

use super::look::count;

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Column {
    /// The worker and its data-parallel rank.
    Worker,
    /// The model of its scope.
    Scope,
    /// How to read its numbers.
    Knowledge,
    /// Blocks on its GPU.
    Gpu,
    /// Blocks in its host memory.
    Host,
    /// Blocks on its disk.
    Disk,
    /// Blocks in the shared store.
    External,
    /// Age of its last event.
    Age,
    /// Age of the last proof that nothing was pending.
    Verified,
    /// How much later than at best it is.
    Lag,
    /// Events on their way.
    Pending,
    /// Events that are lost.
    Missing,
}

/// Which ranks are shown, in which order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    pub(super) sort: Column,
    pub(super) reverse: bool,
    /// Only these; all where there are none.
    pub(super) states: Vec<KnowledgeState>,
    /// Only these; all where there are none.
    pub(super) workers: Vec<u64>,
}

/// A table of ranks.
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    /// Of each column, in characters.
    widths: [usize; Column::ALL.len()],
}

/// One rank.
pub(super) struct Row {
    pub(super) knowledge: KnowledgeState,
    cells: [String; Column::ALL.len()],
}

impl Column {
    pub(super) const ALL: [Column; 12] = [
        Column::Worker,
        Column::Scope,
        Column::Knowledge,
        Column::Gpu,
        Column::Host,
        Column::Disk,
        Column::External,
        Column::Age,
        Column::Verified,
        Column::Lag,
        Column::Pending,
        Column::Missing,
    ];

    fn title(self) -> &'static str {
        match self {
            Column::Worker => "worker/rank",
            Column::Scope => "scope",
            Column::Knowledge => "knowledge",
            Column::Gpu => "gpu",
            Column::Host => "host",
            Column::Disk => "disk",
            Column::External => "external",
            Column::Age => "last event",
            Column::Verified => "verified",
            Column::Lag => "lag over best",
            Column::Pending => "pending",
            Column::Missing => "missing",
        }
    }

    fn is_word(self) -> bool {
        match self {
            Column::Scope | Column::Knowledge => true,
            Column::Worker
            | Column::Gpu
            | Column::Host
            | Column::Disk
            | Column::External
            | Column::Age
            | Column::Verified
            | Column::Lag
            | Column::Pending
            | Column::Missing => false,
        }
    }

    /// The one behind it, and behind the last the first.
    pub(super) fn next(self) -> Column {
        let behind = Column::ALL.into_iter().skip_while(|&column| column != self).nth(1);
        behind.unwrap_or(Column::Worker)
    }

    /// What ranks are sorted by, where that is a number. What is not known comes last.
    fn number(self, worker: &Worker) -> Option<Option<u64>> {
        let (held, fresh) = (&worker.held_blocks, &worker.freshness);
        match self {
            Column::Worker | Column::Scope | Column::Knowledge => None,
            Column::Gpu => Some(Some(held.gpu)),
            Column::Host => Some(Some(held.host)),
            Column::Disk => Some(Some(held.disk)),
            Column::External => Some(Some(held.external)),
            Column::Age => Some(fresh.last_event_age_ms),
            Column::Verified => Some(fresh.verified_age_ms),
            Column::Lag => Some(fresh.lag_over_best_ms),
            Column::Pending => Some(Some(fresh.pending_events)),
            Column::Missing => Some(Some(fresh.missing_events)),
        }
    }

    fn compare(self, left: &Worker, right: &Worker) -> Ordering {
        match self {
            Column::Scope => left.scope.cmp(&right.scope),
            Column::Knowledge => left.knowledge.name().cmp(right.knowledge.name()),
            Column::Worker => Ordering::Equal,
            number => Reverse(number.number(left)).cmp(&Reverse(number.number(right))),
        }
    }

    fn cell(self, worker: &Worker) -> String {
        match self {
            Column::Worker => format!("{}/{}", worker.worker_id, worker.dp_rank),
            // A model's name comes from elsewhere, and must not steer a terminal.
            Column::Scope => worker.scope.model.chars().filter(|c| !c.is_control()).collect(),
            Column::Knowledge => match worker.reason {
                None => worker.knowledge.name().to_owned(),
                Some(Reason::ConflictingPublishers) => {
                    format!("{} (conflicting_publishers)", worker.knowledge.name())
                }
            },
            Column::Age | Column::Verified | Column::Lag => {
                self.number(worker).flatten().map_or("-".to_owned(), age)
            }
            number => count(number.number(worker).flatten().unwrap_or_default()),
        }
    }
}

impl Choice {
    /// What it is, in words.
    pub(super) fn describe(&self) -> String {
        let mut words = self.sort.title().to_owned();
        if self.reverse {
            words += " reversed";
        }
        for state in &self.states {
            words += &format!(", {}", state.name());
        }
        for worker in &self.workers {
            words += &format!(", worker {worker}");
        }
        words
    }

    fn takes(&self, worker: &Worker) -> bool {
        (self.states.is_empty() || self.states.contains(&worker.knowledge))
            && (self.workers.is_empty() || self.workers.contains(&worker.worker_id))
    }

    fn compare(&self, left: &Worker, right: &Worker) -> Ordering {
        let place = |worker: &Worker| (worker.worker_id, worker.dp_rank);
        let order = self.sort.compare(left, right).then_with(|| place(left).cmp(&place(right)));
        if self.reverse { order.reverse() } else { order }
    }
}

impl Table {
    pub(super) fn of(workers: &[Worker], choice: &Choice) -> Table {
        let mut shown: Vec<&Worker> = workers.iter().filter(|worker| choice.takes(worker)).collect();
        shown.sort_by(|left, right| choice.compare(left, right));
        let row = |worker: &&Worker| Row {
            knowledge: worker.knowledge,
            cells: Column::ALL.map(|column| column.cell(worker)),
        };
        let rows: Vec<Row> = shown.iter().map(row).collect();
        let mut widths = Column::ALL.map(|column| column.title().len());
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(&row.cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        Table { rows, widths }
    }

    /// The line above the rows.
    pub(super) fn head(&self) -> String {
        self.join(Column::ALL.map(Column::title))
    }

    /// A row as a line.
    pub(super) fn line(&self, row: &Row) -> String {
        self.join(row.cells.each_ref().map(String::as_str))
    }

    fn join(&self, cells: [&str; Column::ALL.len()]) -> String {
        let cells = Column::ALL.iter().zip(cells).zip(self.widths).map(|((column, cell), width)| {
            if column.is_word() { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ")
    }
}

/// Milliseconds, shortly.
fn age(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms"),
        10_000..600_000 => format!("{} s", ms / 1000),
        600_000.. => format!("{} min", count(ms / 60_000)),
    }
}
