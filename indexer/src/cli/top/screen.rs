//! The table on a terminal: drawn again at every look and key, until somebody ends it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use kvtide::{KnowledgeState, serving::Failure};
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Color, Style, Stylize},
    text::Line,
    widgets::Paragraph,
};
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};

use super::{
    super::service_at::ServiceAt,
    look::{Look, Looker},
    table::{Choice, Table},
};

/// How long a key may wait for what else there is to do.
const TURN: Duration = Duration::from_millis(100);
/// What a service may take to answer, before that is said.
const LATE: Duration = Duration::from_secs(3);
/// Columns that one key moves the table by.
const SIDEWAYS: u16 = 8;
const KEYS: &str = "q end   arrows, page up and down, home, end: move   s sort by the next column   r the other way round   \
                    f only one state   w only one worker";

/// What is shown.
struct Screen {
    url: String,
    /// Between one look and the next.
    every: Duration,
    choice: Choice,
    table: Table,
    last: Option<Look>,
    before: Option<Look>,
    /// Why the service did not answer when it was asked last.
    failure: Option<String>,
    /// The first row that is shown, and the first character of it.
    top: usize,
    left: u16,
    /// Rows that there is room for.
    room: usize,
    /// A worker that is being typed.
    typed: Option<String>,
}

/// Whether to go on.
#[derive(PartialEq, Eq, Debug)]
enum Next {
    GoOn,
    End,
}

/// Shows it until somebody ends it. A service that is away is asked again and again.
pub(super) fn run(service: ServiceAt, choice: Choice, every: Duration) -> Result<(), Failure> {
    let mut screen = Screen::new(service.url().to_owned(), choice, every);
    let (send, looks) = mpsc::channel();
    let mut looker = Looker::new(service);
    // It ends with the process: a service may take its time to answer.
    thread::spawn(move || {
        while send.send(looker.look().map_err(|failure| failure.to_string())).is_ok() {
            thread::sleep(every);
        }
    });
    // Whoever ends it from elsewhere gets the terminal back as it was, too.
    let (runtime, stopped) = (Runtime::new()?, Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&stopped);
    runtime.spawn(async move {
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            terminate.recv().await;
            stop.store(true, Ordering::Relaxed);
        }
    });
    let mut terminal = ratatui::try_init()?;
    let shown = screen.show(&mut terminal, &looks, &stopped);
    ratatui::restore();
    Ok(shown?)
}

impl Screen {
    fn new(url: String, choice: Choice, every: Duration) -> Screen {
        let table = Table::of(&[], &choice);
        let (last, before, failure, typed) = (None, None, None, None);
        Screen { url, every, choice, table, last, before, failure, top: 0, left: 0, room: 0, typed }
    }

    fn show(
        &mut self,
        terminal: &mut DefaultTerminal,
        looks: &Receiver<Result<Look, String>>,
        stopped: &AtomicBool,
    ) -> io::Result<()> {
        while !stopped.load(Ordering::Relaxed) {
            looks.try_iter().for_each(|look| self.note(look));
            terminal.draw(|frame| self.draw(frame))?;
            if event::poll(TURN)?
                && let Event::Key(key) = event::read()?
                && key.is_press()
                && self.press(key) == Next::End
            {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes what the service said.
    fn note(&mut self, look: Result<Look, String>) {
        match look {
            Ok(look) => {
                self.before = self.last.replace(look);
                self.failure = None;
                self.choose();
            }
            // What was known goes on being shown, with its age.
            Err(failure) => self.failure = Some(failure.lines().next().unwrap_or_default().to_owned()),
        }
    }

    fn choose(&mut self) {
        let workers = self.last.as_ref().map_or(&[][..], |look| &look.workers);
        self.table = Table::of(workers, &self.choice);
    }

    fn press(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Next::End;
        }
        if let Some(typed) = self.typed.take() {
            self.edit(typed, key.code);
            return Next::GoOn;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Next::End,
            KeyCode::Down => self.top += 1,
            KeyCode::Up => self.top = self.top.saturating_sub(1),
            KeyCode::PageDown => self.top += self.room,
            KeyCode::PageUp => self.top = self.top.saturating_sub(self.room),
            KeyCode::Home => self.top = 0,
            KeyCode::End => self.top = self.table.rows.len(),
            KeyCode::Right => self.left = self.left.saturating_add(SIDEWAYS),
            KeyCode::Left => self.left = self.left.saturating_sub(SIDEWAYS),
            KeyCode::Char('s') => self.choice.sort = self.choice.sort.next(),
            KeyCode::Char('r') => self.choice.reverse = !self.choice.reverse,
            KeyCode::Char('f') => self.choice.states = next_state(&self.choice.states),
            KeyCode::Char('w') => self.typed = Some(String::new()),
            _ => return Next::GoOn,
        }
        self.choose();
        Next::GoOn
    }

    /// A key in the worker that is being typed: none at all means every worker.
    fn edit(&mut self, mut typed: String, key: KeyCode) {
        match key {
            KeyCode::Enter => {
                self.choice.workers = typed.parse().ok().into_iter().collect();
                return self.choose();
            }
            KeyCode::Esc => return,
            KeyCode::Backspace => drop(typed.pop()),
            KeyCode::Char(digit) if digit.is_ascii_digit() => typed.push(digit),
            _ => {}
        }
        self.typed = Some(typed);
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let header = self.header();
        let areas = Layout::vertical([
            Constraint::Length(u16::try_from(header.len()).unwrap_or(u16::MAX)),
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ]);
        let [above, head, rows, below] = areas.areas(frame.area());
        self.room = usize::from(rows.height);
        self.top = self.top.min(self.table.rows.len().saturating_sub(self.room));
        frame.render_widget(Paragraph::new(header), above);
        let scrolled = |lines: Vec<Line<'static>>| Paragraph::new(lines).scroll((0, self.left));
        frame.render_widget(scrolled(vec![Line::from(self.table.head()).bold()]), head);
        let shown = self.table.rows.iter().skip(self.top).take(self.room);
        let lines = shown.map(|row| Line::from(self.table.line(row)).style(style(row.knowledge)));
        frame.render_widget(scrolled(lines.collect()), rows);
        frame.render_widget(Line::from(self.footer()).dim(), below);
    }

    fn header(&self) -> Vec<Line<'static>> {
        let mut lines: Vec<Line<'static>> = match &self.last {
            Some(look) => look.header(&self.url, self.before.as_ref()).map(Line::from).into(),
            None => vec![Line::from(format!("asking {}", self.url))],
        };
        let seen = self.last.as_ref().map(|look| look.at.elapsed());
        let trouble = match (&self.failure, seen) {
            (Some(failure), None) => Some(format!("{failure}; asking again")),
            (Some(failure), Some(seen)) => {
                Some(format!("{failure}; asking again; what is shown is {} s old", seen.as_secs()))
            }
            (None, Some(seen)) if seen > self.every + LATE => {
                Some(format!("no answer for {} s", seen.as_secs()))
            }
            (None, Some(_) | None) => None,
        };
        lines.extend(trouble.map(|trouble| Line::from(trouble).fg(Color::Red)));
        lines
    }

    fn footer(&self) -> String {
        if let Some(typed) = &self.typed {
            return format!(
                "worker: {typed}_   enter: only this one, or all if none is typed   escape: as before"
            );
        }
        let (first, rows) = (self.top, self.table.rows.len());
        let shown = format!("{}-{} of {rows}", (first + 1).min(rows), (first + self.room).min(rows));
        format!("{shown} by {}   {KEYS}", self.choice.describe())
    }
}

/// All states, then each alone.
fn next_state(now: &[KnowledgeState]) -> Vec<KnowledgeState> {
    let Some(&now) = now.first() else { return vec![KnowledgeState::ALL[0]] };
    let behind = KnowledgeState::ALL.into_iter().skip_while(|&state| state != now).nth(1);
    behind.into_iter().collect()
}

/// What is not complete stands out.
fn style(knowledge: KnowledgeState) -> Style {
    match knowledge {
        KnowledgeState::Complete => Style::new(),
        KnowledgeState::Partial => Style::new().fg(Color::Yellow),
        KnowledgeState::Recovering => Style::new().fg(Color::Blue),
        KnowledgeState::Unknown | KnowledgeState::Gap => Style::new().fg(Color::Red),
    }
}
