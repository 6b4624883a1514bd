-- Jobs and all that belongs to them. Times are UNIX seconds, payloads are JSON text.

-- Which states there are is said with OR and instr: what IN lists is put into a table for each
-- statement anew.

CREATE TABLE job (
  id          TEXT    NOT NULL PRIMARY KEY,
  tenant      TEXT    NOT NULL,
  "user"      TEXT    NOT NULL,
  name        TEXT    NOT NULL,
  version     TEXT    NOT NULL,
  state       TEXT    NOT NULL CHECK (
                state = 'PENDING' OR state = 'RUNNING' OR state = 'WAITING' OR state = 'PAUSED'
                OR state = 'COMPENSATING' OR state = 'COMPLETED' OR state = 'FAILED'
                OR state = 'COMPENSATED' OR state = 'CANCELLED' OR state = 'NEEDS_ATTENTION'),
  queue       TEXT    NOT NULL,
  priority    INTEGER NOT NULL,
  input       TEXT    NOT NULL,
  plan        TEXT,
  options     TEXT    NOT NULL,
  result      TEXT,
  error       TEXT,
  wait        TEXT,
  request     TEXT    CHECK (request IN ('cancel', 'pause')),
  paused_from TEXT,                          -- the state to go back to when it is resumed
  key         TEXT,
  fingerprint TEXT    NOT NULL,
  parent      TEXT,
  parent_seq  INTEGER,
  root        TEXT,                          -- the first job of its tree; NULL: itself
  forked_from TEXT,
  budget_of   TEXT,                          -- the job whose budget it spends; NULL: its own
  created_at  REAL    NOT NULL,
  started_at  REAL,
  ended_at    REAL,
  deadline_at REAL,
  epoch       INTEGER NOT NULL DEFAULT 0,    -- of its last lease, once it has ended
  CHECK ((ended_at IS NOT NULL) = (state = 'COMPLETED' OR state = 'FAILED'
                                   OR state = 'COMPENSATED' OR state = 'CANCELLED'))
) STRICT;

CREATE UNIQUE INDEX job_key ON job (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX job_newest ON job (created_at, id);
CREATE INDEX job_tenant ON job (tenant, created_at, id);
CREATE INDEX job_state ON job (state, created_at, id);
CREATE INDEX job_parent ON job (parent) WHERE parent IS NOT NULL;
CREATE INDEX job_root ON job (root) WHERE root IS NOT NULL;
CREATE INDEX job_budget ON job (budget_of) WHERE budget_of IS NOT NULL;
CREATE INDEX job_ended ON job (ended_at) WHERE ended_at IS NOT NULL;

CREATE TRIGGER job_transition BEFORE UPDATE OF state ON job
WHEN instr(' PENDING>PENDING PENDING>RUNNING PENDING>PAUSED PENDING>CANCELLED PENDING>NEEDS_ATTENTION'
    || ' RUNNING>RUNNING RUNNING>WAITING RUNNING>PAUSED RUNNING>COMPENSATING RUNNING>COMPLETED'
    || ' RUNNING>FAILED RUNNING>CANCELLED RUNNING>NEEDS_ATTENTION'
    || ' WAITING>WAITING WAITING>RUNNING WAITING>PAUSED WAITING>COMPENSATING WAITING>CANCELLED'
    || ' WAITING>NEEDS_ATTENTION'
    || ' PAUSED>PAUSED PAUSED>PENDING PAUSED>WAITING PAUSED>COMPENSATING PAUSED>CANCELLED'
    || ' COMPENSATING>COMPENSATING COMPENSATING>COMPENSATED COMPENSATING>FAILED'
    || ' COMPENSATING>CANCELLED COMPENSATING>NEEDS_ATTENTION COMPENSATING>PAUSED'
    || ' NEEDS_ATTENTION>NEEDS_ATTENTION NEEDS_ATTENTION>PENDING NEEDS_ATTENTION>COMPENSATING NEEDS_ATTENTION>CANCELLED'
    || ' NEEDS_ATTENTION>FAILED'
    || ' FAILED>PENDING FAILED>COMPENSATING CANCELLED>PENDING CANCELLED>COMPENSATING'
    || ' COMPLETED>COMPENSATING ',
    ' ' || OLD.state || '>' || NEW.state || ' ') = 0
BEGIN
  SELECT RAISE(ABORT, 'illegal transition of a job');
END;

CREATE TRIGGER job_kept BEFORE DELETE ON job WHEN OLD.ended_at IS NULL
BEGIN
  SELECT RAISE(ABORT, 'a job that has not ended cannot be deleted');
END;

-- One row for each job that has not ended: who works on it, and when it may be claimed.
-- Narrow, since it is written more often than all else.
CREATE TABLE lease (
  job_id   TEXT    NOT NULL PRIMARY KEY,
  tenant   TEXT    NOT NULL,
  queue    TEXT    NOT NULL,
  priority INTEGER NOT NULL,
  tag      INTEGER NOT NULL,                 -- its turn among the tenants of the queue
  ready    INTEGER NOT NULL CHECK (ready IN (0, 1)),   -- 1: may be claimed now
  due_at   REAL,                             -- becomes ready then; NULL: only news wakes it
  wakes    INTEGER NOT NULL CHECK (wakes IN (0, 1)),   -- 1: news makes it ready while nobody owns it
  owner    TEXT,
  epoch    INTEGER NOT NULL,                 -- the number of the claim; only grows
  until    REAL    NOT NULL,                 -- by the clock that counts from the machine's start
  claims   INTEGER NOT NULL,                 -- in a row that ended without progress
  news     INTEGER NOT NULL,                 -- how often it was told something from outside
  CHECK (owner IS NULL OR (ready = 0 AND due_at IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX lease_ready ON lease (queue, priority DESC, tag, tenant) WHERE ready = 1;
CREATE INDEX lease_timer ON lease (queue, due_at) WHERE ready = 0 AND due_at IS NOT NULL;
CREATE INDEX lease_owned ON lease (owner, queue, tenant) WHERE owner IS NOT NULL;

CREATE TRIGGER lease_epoch BEFORE UPDATE OF epoch ON lease WHEN NEW.epoch < OLD.epoch
BEGIN
  SELECT RAISE(ABORT, 'an epoch only grows');
END;

-- What a job did, in order: the truth from which it goes on.
CREATE TABLE journal (
  job_id        TEXT    NOT NULL,
  seq           INTEGER NOT NULL,
  id            TEXT    NOT NULL,
  kind          TEXT    NOT NULL,
  name          TEXT    NOT NULL,
  state         TEXT    NOT NULL CHECK (
                  state = 'SUCCEEDED' OR state = 'PENDING' OR state = 'RUNNING' OR state = 'FAILED'
                  OR state = 'COMPENSATING' OR state = 'COMPENSATED'
                  OR state = 'COMPENSATION_FAILED' OR state = 'SKIPPED'),
  attempt       INTEGER NOT NULL,
  input         TEXT,
  output        TEXT,
  error         TEXT,
  checkpoint    TEXT,
  checkpoint_no INTEGER NOT NULL,
  wake_at       REAL,
  started_at    REAL,
  ended_at      REAL,
  key           TEXT,  -- by which other jobs of the tenant find what a step gave
  PRIMARY KEY (job_id, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX journal_key ON journal (key) WHERE key IS NOT NULL;

-- The identity of an entry never changes: whoever would put another one in its place is refused.
CREATE TRIGGER journal_place BEFORE UPDATE OF id ON journal WHEN NEW.id <> OLD.id
BEGIN
  SELECT RAISE(ABORT, 'another entry has this place in the journal');
END;

-- What comes late is passed over: a start that is written after the result, an older checkpoint.
CREATE TRIGGER journal_stale BEFORE UPDATE ON journal
WHEN NEW.id = OLD.id AND (instr(' SUCCEEDED>PENDING SUCCEEDED>RUNNING SKIPPED>RUNNING COMPENSATED>RUNNING'
    || ' COMPENSATING>RUNNING COMPENSATION_FAILED>RUNNING ',
    ' ' || OLD.state || '>' || NEW.state || ' ') > 0
  OR (OLD.state = 'SUCCEEDED' AND NEW.state = 'SUCCEEDED' AND NEW.output IS OLD.output)
  OR NEW.checkpoint_no < OLD.checkpoint_no)
BEGIN
  SELECT RAISE(IGNORE);
END;

CREATE TRIGGER journal_transition BEFORE UPDATE OF state ON journal
WHEN instr(' PENDING>PENDING PENDING>RUNNING PENDING>SUCCEEDED PENDING>FAILED PENDING>SKIPPED'
    || ' RUNNING>RUNNING RUNNING>PENDING RUNNING>SUCCEEDED RUNNING>FAILED RUNNING>SKIPPED'
    || ' FAILED>PENDING FAILED>RUNNING FAILED>SKIPPED FAILED>COMPENSATING'
    || ' SUCCEEDED>COMPENSATING SKIPPED>PENDING'
    || ' COMPENSATING>COMPENSATING COMPENSATING>COMPENSATED COMPENSATING>COMPENSATION_FAILED'
    || ' COMPENSATION_FAILED>COMPENSATING COMPENSATION_FAILED>COMPENSATED'
    -- late: see journal_stale
    || ' SUCCEEDED>PENDING SUCCEEDED>RUNNING SUCCEEDED>SUCCEEDED SKIPPED>RUNNING'
    || ' COMPENSATED>RUNNING COMPENSATING>RUNNING COMPENSATION_FAILED>RUNNING ',
    ' ' || OLD.state || '>' || NEW.state || ' ') = 0
BEGIN
  SELECT RAISE(ABORT, 'illegal transition of a journal entry');
END;

CREATE TRIGGER journal_result BEFORE UPDATE ON journal
WHEN (OLD.state = 'SUCCEEDED' OR OLD.state = 'COMPENSATING' OR OLD.state = 'COMPENSATED'
    OR OLD.state = 'COMPENSATION_FAILED')
  AND NEW.state NOT IN ('PENDING', 'RUNNING')
  AND NEW.output IS NOT OLD.output
BEGIN
  SELECT RAISE(ABORT, 'the result of a journal entry never changes');
END;

-- What happened to a job, for people: nothing here is ever changed.
CREATE TABLE event (
  no     INTEGER NOT NULL PRIMARY KEY,
  job_id TEXT    NOT NULL,
  type   TEXT    NOT NULL,
  data   TEXT    NOT NULL,
  actor  TEXT    NOT NULL,
  at     REAL    NOT NULL
) STRICT;

CREATE INDEX event_job ON event (job_id, no);

CREATE TRIGGER event_kept BEFORE UPDATE ON event
BEGIN
  SELECT RAISE(ABORT, 'the event log is append-only');
END;

CREATE TRIGGER event_outlives BEFORE DELETE ON event
WHEN EXISTS (SELECT 1 FROM job WHERE id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'the event log is append-only: it goes only with its job');
END;

-- Messages to jobs. Those received are kept, so that a key is known when it comes again.
CREATE TABLE message (
  no       INTEGER NOT NULL PRIMARY KEY,
  job_id   TEXT    NOT NULL,
  topic    TEXT    NOT NULL,
  payload  TEXT    NOT NULL,
  key      TEXT,
  sent_at  REAL    NOT NULL,
  taken_at REAL
) STRICT;

CREATE INDEX message_job ON message (job_id, no);
CREATE UNIQUE INDEX message_key ON message (job_id, key) WHERE key IS NOT NULL;

CREATE TABLE schedule (
  tenant   TEXT    NOT NULL,
  name     TEXT    NOT NULL,
  cron     TEXT    NOT NULL,
  job      TEXT    NOT NULL,
  timezone TEXT    NOT NULL,
  catch_up TEXT    NOT NULL,
  paused   INTEGER NOT NULL CHECK (paused IN (0, 1)),
  next_at  REAL,
  last_at  REAL,
  PRIMARY KEY (tenant, name)
) STRICT;

CREATE TABLE worker (
  owner TEXT NOT NULL PRIMARY KEY,
  info  TEXT NOT NULL,
  beat  REAL NOT NULL                        -- by the clock of the leases
) STRICT;

-- Whose turn it is: the last tag given to each tenant of a queue.
CREATE TABLE turn (
  queue  TEXT    NOT NULL,
  tenant TEXT    NOT NULL,
  tag    INTEGER NOT NULL,
  PRIMARY KEY (queue, tenant)
) STRICT, WITHOUT ROWID;

CREATE TABLE queue (
  name      TEXT    NOT NULL PRIMARY KEY,
  tag       INTEGER NOT NULL,                -- of the job last claimed
  tokens    REAL,                            -- how many claims its rate has left …
  tokens_at REAL                             -- … at this time
) STRICT;

-- Facts about this file: the start of the machine by which its leases count, the fingerprint key.
CREATE TABLE fact (
  name  TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

-- Empty. Filled for a moment, once, so that the log of changes (-wal) has its size from the start:
-- to overwrite a part of a file safely takes half the time of adding to it.
CREATE TABLE pad (
  filler BLOB NOT NULL
) STRICT;
