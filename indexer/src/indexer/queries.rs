//! Queries: the scope that each is about, whether it may be asked, and one version to answer it from.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use super::{Indexer, ScopeIndex};
use crate::{Answer, Query, QueryError, Scope, ScopeQuery, query::Moment, telemetry};

impl Indexer {
    /// How much of a prompt every rank holds.
    ///
    /// # Errors
    /// [`QueryError`] where no scope fits, several do, or the prompt is too long.
    pub fn overlap(&self, query: &Query<'_>) -> Result<Answer, QueryError> {
        let started = Instant::now();
        let answer = self.find(&query.scope).and_then(|scope| {
            query.check_hashing(scope.hashing)?;
            self.check_size(query.tokens(scope.scope.block_size), query.media(scope.hashing))?;
            Ok(self.answer(query, &self.moment(&scope), started))
        });
        telemetry::count_query(started.elapsed(), answer.is_ok());
        answer
    }

    /// The same of several prompts. Answers of one scope are of one version.
    ///
    /// # Errors
    /// As [`Indexer::overlap`], for the first that has no answer; and where the prompts are too long together.
    pub fn overlap_all(&self, queries: &[Query<'_>]) -> Result<Vec<Answer>, QueryError> {
        let started = Instant::now();
        let answers = self.answers(queries, started);
        telemetry::count_query(started.elapsed(), answers.is_ok());
        answers
    }

    fn answers(&self, queries: &[Query<'_>], started: Instant) -> Result<Vec<Answer>, QueryError> {
        // Next to each other they mostly state the same scope, which is looked for once: finding one writes to what all
        // threads share.
        let parts = queries.chunk_by(|one, next| one.scope == next.scope);
        let found = parts.map(|part| Ok((self.find(&part[0].scope)?, part)));
        let found = found.collect::<Result<Vec<_>, QueryError>>()?;
        let all = || found.iter().flat_map(|(scope, part)| part.iter().map(move |query| (scope, query)));
        let (mut tokens, mut media) = (0_u64, 0_u64);
        for (scope, query) in all() {
            query.check_hashing(scope.hashing)?;
            tokens = tokens.saturating_add(query.tokens(scope.scope.block_size));
            media = media.saturating_add(query.media(scope.hashing));
        }
        self.check_size(tokens, media)?;
        let mut moments: BTreeMap<&Scope, Moment<'_>> = BTreeMap::new();
        let (mut answers, mut ranks) = (Vec::with_capacity(queries.len()), 0);
        for (scope, query) in all() {
            let moment = moments.entry(&scope.scope).or_insert_with(|| self.moment(scope));
            let answer = self.answer(query, moment, started);
            ranks += answer.ranks.len() as u64;
            if ranks > self.limits.query_ranks {
                return Err(QueryError::TooManyRanks { limit: self.limits.query_ranks });
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    fn check_size(&self, tokens: u64, media: u64) -> Result<(), QueryError> {
        match (self.limits.query_tokens, self.limits.query_media) {
            (limit, _) if tokens > limit => Err(QueryError::TooManyTokens { got: tokens, limit }),
            (_, limit) if media > limit => Err(QueryError::TooManyMedia { got: media, limit }),
            (_, _) => Ok(()),
        }
    }

    /// A scope's index as it is now.
    fn moment<'a>(&self, scope: &'a ScopeIndex) -> Moment<'a> {
        Moment {
            scope: &scope.scope,
            hashing: scope.hashing,
            // Before the view: what becomes visible between the two is counted as pending, and not as neither.
            pending: scope.pending.counts(),
            view: scope.reader.view(),
            steady_ms: self.clock.steady_ms(),
            unreached: scope.unreached.watch(),
        }
    }

    fn answer(&self, query: &Query<'_>, moment: &Moment<'_>, started: Instant) -> Answer {
        let mut answer = query.answer(moment);
        answer.collected_at_ms = self.clock.wall_ms();
        answer.took_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        answer
    }

    pub(super) fn find(&self, query: &ScopeQuery) -> Result<Arc<ScopeIndex>, QueryError> {
        let scopes = self.scopes.read();
        let fitting: Vec<&Arc<ScopeIndex>> =
            scopes.values().filter(|index| query.fits(&index.scope)).collect();
        match fitting.as_slice() {
            [] => Err(QueryError::UnknownScope { known: scopes.len() }),
            [one] => Ok(Arc::clone(one)),
            several => {
                let differences =
                    Scope::differences(&several.iter().map(|index| &index.scope).collect::<Vec<_>>());
                Err(QueryError::SeveralScopes { fitting: several.len(), differences })
            }
        }
    }
}
