-- What jobs do to the world, what people are asked about it, and what they are told.

-- The ledger: written before the first byte leaves, and again when it is known what became of it.
CREATE TABLE effect (
  job_id     TEXT    NOT NULL,
  no         INTEGER NOT NULL,               -- its place: effects are undone in the reverse order
  tenant     TEXT    NOT NULL,
  key        TEXT    NOT NULL,               -- by which the receiver knows the call again
  step       TEXT    NOT NULL,
  part       TEXT    NOT NULL,
  ordinal    INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  kind       TEXT    NOT NULL,
  target     TEXT    NOT NULL,
  state      TEXT    NOT NULL CHECK (state IN (
               'INTENT', 'DONE', 'FAILED', 'IN_DOUBT', 'UNDONE', 'BORROWED')),
  in_doubt   TEXT    NOT NULL,
  key_ttl  REAL    NOT NULL,
  details    TEXT,
  result     TEXT,
  problem    TEXT,
  error      TEXT,
  undo       TEXT,
  proof      TEXT    NOT NULL,
  called_at  REAL    NOT NULL,
  ended_at   REAL,
  business   TEXT,                           -- by which all jobs of the tenant find it
  kept_until REAL,                           -- how long it then outlives its job; NULL: for ever
  last_called_at REAL,                       -- when the key was last used, if that was noted
  PRIMARY KEY (job_id, no)
) STRICT, WITHOUT ROWID;

-- Of the place, too: the key of an effect is made of it.
CREATE UNIQUE INDEX effect_key ON effect (tenant, key);
CREATE INDEX effect_business ON effect (tenant, business, generation) WHERE business IS NOT NULL;
CREATE INDEX effect_kept ON effect (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX effect_open ON effect (tenant, called_at) WHERE state IN ('INTENT', 'IN_DOUBT');

-- Who was ended before the call says so of a line that may be another's.
CREATE TRIGGER effect_not_called BEFORE UPDATE ON effect
WHEN NEW.proof = 'not called' AND (NEW.job_id <> OLD.job_id OR NEW.step <> OLD.step
  OR NEW.part <> OLD.part OR NEW.ordinal <> OLD.ordinal)
BEGIN
  SELECT RAISE(IGNORE);
END;

CREATE TRIGGER effect_owner BEFORE UPDATE ON effect
WHEN NEW.job_id <> OLD.job_id AND NEW.proof <> 'not called'
BEGIN
  SELECT RAISE(ABORT, 'the key of an effect belongs to another job');
END;

CREATE TRIGGER effect_place BEFORE UPDATE ON effect
WHEN NEW.proof <> 'not called'
  AND (NEW.step <> OLD.step OR NEW.part <> OLD.part OR NEW.ordinal <> OLD.ordinal)
BEGIN
  SELECT RAISE(ABORT, 'the key of an effect belongs to another place in its job');
END;

-- The same line again: the answer to the first time was lost.
CREATE TRIGGER effect_stale BEFORE UPDATE ON effect
WHEN NEW.job_id = OLD.job_id AND NEW.step = OLD.step AND NEW.part = OLD.part
  AND NEW.ordinal = OLD.ordinal AND NEW.target = OLD.target AND (
  instr(' DONE>INTENT FAILED>INTENT IN_DOUBT>INTENT UNDONE>INTENT FAILED>FAILED UNDONE>UNDONE'
    || ' FAILED>UNDONE ',
    ' ' || OLD.state || '>' || NEW.state || ' ') > 0
  OR (instr(' INTENT>INTENT IN_DOUBT>IN_DOUBT ', ' ' || OLD.state || '>' || NEW.state || ' ') > 0
    AND NEW.proof = OLD.proof AND NEW.last_called_at IS OLD.last_called_at)
  OR (OLD.state = 'DONE' AND NEW.state = 'DONE' AND NEW.result IS OLD.result))
BEGIN
  SELECT RAISE(IGNORE);
END;

CREATE TRIGGER effect_transition BEFORE UPDATE OF state ON effect
WHEN NEW.job_id = OLD.job_id AND OLD.state IN ('DONE', 'FAILED', 'UNDONE') AND (
  instr(' DONE>FAILED DONE>IN_DOUBT FAILED>DONE FAILED>IN_DOUBT UNDONE>DONE UNDONE>FAILED'
    || ' UNDONE>IN_DOUBT ',
    ' ' || OLD.state || '>' || NEW.state || ' ') > 0
  OR (OLD.state = 'DONE' AND NEW.state = 'DONE' AND NEW.result IS NOT OLD.result))
BEGIN
  SELECT RAISE(ABORT, 'what is known of an effect never changes');
END;

-- When a job has ended, nobody finds out any more what became of its open calls.
CREATE TRIGGER job_leaves_no_intent AFTER UPDATE OF state ON job
WHEN NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL
BEGIN
  UPDATE effect SET state = 'IN_DOUBT', ended_at = NEW.ended_at
  WHERE job_id = NEW.id AND state = 'INTENT';
END;

CREATE TRIGGER effect_outlives BEFORE DELETE ON effect
WHEN EXISTS (SELECT 1 FROM job WHERE id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'the ledger is append-only: it goes only with its job');
END;

-- Questions to people, each about one action.
CREATE TABLE approval (
  id          TEXT    NOT NULL PRIMARY KEY,
  tenant      TEXT    NOT NULL,
  job_id      TEXT    NOT NULL,
  step        TEXT    NOT NULL,              -- what waits for it
  state       TEXT    NOT NULL CHECK (state IN (
                'PENDING', 'APPROVED', 'REJECTED', 'EXPIRED', 'WITHDRAWN')),
  action_hash TEXT    NOT NULL,
  no          INTEGER NOT NULL,              -- grows with every change
  tick_at     REAL,                          -- when to remind, escalate or expire next
  created_at  REAL    NOT NULL,
  data        TEXT    NOT NULL
) STRICT;

-- One question for one action, as long as it is open.
CREATE UNIQUE INDEX approval_asked ON approval (job_id, step, action_hash) WHERE state = 'PENDING';
CREATE INDEX approval_step ON approval (job_id, step, created_at);
CREATE INDEX approval_newest ON approval (state, created_at);
CREATE INDEX approval_tick ON approval (tick_at) WHERE tick_at IS NOT NULL;

CREATE TRIGGER approval_decided BEFORE UPDATE ON approval
WHEN OLD.state <> 'PENDING' OR NEW.no <= OLD.no
BEGIN
  SELECT RAISE(ABORT, 'an approval is decided once');
END;

-- Links of mails, by which one person may decide about one approval, once.
CREATE TABLE link (
  id          TEXT    NOT NULL PRIMARY KEY,
  approval_id TEXT    NOT NULL,
  data        TEXT    NOT NULL
) STRICT;

CREATE INDEX link_approval ON link (approval_id);

-- What people must be told, kept until they have been: a row for each channel and recipient.
CREATE TABLE notice (
  id          TEXT    NOT NULL PRIMARY KEY,
  job_id      TEXT    NOT NULL,
  approval_id TEXT,
  channel     TEXT    NOT NULL,
  recipient   TEXT    NOT NULL,
  kind        TEXT    NOT NULL,
  state       TEXT    NOT NULL CHECK (
    state IN ('WAITING', 'SENDING', 'ADDRESSED', 'DELIVERED', 'GIVEN_UP')),
  due_at      REAL    NOT NULL,
  data        TEXT    NOT NULL
) STRICT;

CREATE INDEX notice_due ON notice (channel, due_at) WHERE state IN ('WAITING', 'SENDING');
CREATE INDEX notice_recipient ON notice (channel, recipient, due_at)
  WHERE state IN ('WAITING', 'SENDING');
CREATE INDEX notice_job ON notice (job_id);
CREATE INDEX notice_approval ON notice (approval_id) WHERE approval_id IS NOT NULL;

-- What a job and its children may spend, and what is gone.
CREATE TABLE budget (
  root_id TEXT    NOT NULL PRIMARY KEY,
  no      INTEGER NOT NULL,
  data    TEXT    NOT NULL
) STRICT;
