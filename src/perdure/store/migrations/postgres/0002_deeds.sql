-- What jobs do to the world, what people are asked about it, and what they are told.

-- The ledger: written before the first byte leaves, and again when it is known what became of it.
CREATE TABLE effect (
  job_id     text COLLATE "C" NOT NULL,
  no         bigint NOT NULL,                -- its place: effects are undone in the reverse order
  tenant     text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,      -- by which the receiver knows the call again
  step       text COLLATE "C" NOT NULL,
  part       text COLLATE "C" NOT NULL,
  ordinal    bigint NOT NULL,
  generation bigint NOT NULL,
  kind       text   NOT NULL,
  target     text   NOT NULL,
  state      text COLLATE "C" NOT NULL CHECK (state IN (
               'INTENT', 'DONE', 'FAILED', 'IN_DOUBT', 'UNDONE', 'BORROWED')),
  in_doubt   text   NOT NULL,
  key_ttl  float8 NOT NULL,
  details    text,
  result     text,
  problem    text,
  error      text,
  undo       text,
  proof      text   NOT NULL,
  called_at  float8 NOT NULL,
  ended_at   float8,
  business   text COLLATE "C",               -- by which all jobs of the tenant find it
  kept_until float8,                         -- how long it then outlives its job; NULL: for ever
  last_called_at float8,                     -- when the key was last used, if that was noted
  PRIMARY KEY (job_id, no)
) WITH (fillfactor = 90);

-- Of the place, too: the key of an effect is made of it.
CREATE UNIQUE INDEX effect_key ON effect (tenant, key);
CREATE INDEX effect_business ON effect (tenant, business, generation) WHERE business IS NOT NULL;
CREATE INDEX effect_kept ON effect (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX effect_open ON effect (tenant, called_at) WHERE state IN ('INTENT', 'IN_DOUBT');

-- Triggers fire in the order of their names.
-- Who was ended before the call says so of a line that may be another's.
CREATE TRIGGER effect_0_not_called BEFORE UPDATE ON effect FOR EACH ROW
WHEN (NEW.proof = 'not called' AND (NEW.job_id <> OLD.job_id OR NEW.step <> OLD.step
  OR NEW.part <> OLD.part OR NEW.ordinal <> OLD.ordinal))
EXECUTE FUNCTION pass_over();

CREATE TRIGGER effect_1_owner BEFORE UPDATE ON effect FOR EACH ROW
WHEN (NEW.job_id <> OLD.job_id)
EXECUTE FUNCTION refuse('the key of an effect belongs to another job');

CREATE TRIGGER effect_1_place BEFORE UPDATE ON effect FOR EACH ROW
WHEN (NEW.step <> OLD.step OR NEW.part <> OLD.part OR NEW.ordinal <> OLD.ordinal)
EXECUTE FUNCTION refuse('the key of an effect belongs to another place in its job');

-- The same line again: the answer to the first time was lost.
CREATE TRIGGER effect_2_stale BEFORE UPDATE ON effect FOR EACH ROW
WHEN (NEW.target = OLD.target AND (
  OLD.state || '>' || NEW.state IN (
    'DONE>INTENT', 'FAILED>INTENT', 'IN_DOUBT>INTENT', 'UNDONE>INTENT', 'FAILED>FAILED',
    'UNDONE>UNDONE', 'FAILED>UNDONE')
  OR (OLD.state || '>' || NEW.state IN ('INTENT>INTENT', 'IN_DOUBT>IN_DOUBT')
    AND NEW.proof = OLD.proof AND NEW.last_called_at IS NOT DISTINCT FROM OLD.last_called_at)
  OR (OLD.state = 'DONE' AND NEW.state = 'DONE' AND NEW.result IS NOT DISTINCT FROM OLD.result)))
EXECUTE FUNCTION pass_over();

CREATE TRIGGER effect_3_transition BEFORE UPDATE OF state ON effect FOR EACH ROW
WHEN (OLD.state || '>' || NEW.state IN (
  'DONE>FAILED', 'DONE>IN_DOUBT', 'FAILED>DONE', 'FAILED>IN_DOUBT', 'UNDONE>DONE',
  'UNDONE>FAILED', 'UNDONE>IN_DOUBT')
  OR (OLD.state = 'DONE' AND NEW.state = 'DONE' AND NEW.result IS DISTINCT FROM OLD.result))
EXECUTE FUNCTION refuse('what is known of an effect never changes');

CREATE FUNCTION doubt_intents() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('UPDATE %I.effect SET state = $1, ended_at = $2 WHERE job_id = $3 AND state = $4',
                 TG_TABLE_SCHEMA)
    USING 'IN_DOUBT', NEW.ended_at, NEW.id, 'INTENT';
  RETURN NULL;
END $$;

-- When a job has ended, nobody finds out any more what became of its open calls.
CREATE TRIGGER job_leaves_no_intent AFTER UPDATE OF state ON job FOR EACH ROW
WHEN (NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL)
EXECUTE FUNCTION doubt_intents();

CREATE FUNCTION effect_goes_with_its_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  lives boolean;
BEGIN
  EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I.job WHERE id = $1)', TG_TABLE_SCHEMA)
    INTO lives USING OLD.job_id;
  IF lives THEN
    RAISE EXCEPTION 'the ledger is append-only: it goes only with its job'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN OLD;
END $$;

CREATE TRIGGER effect_outlives BEFORE DELETE ON effect FOR EACH ROW
EXECUTE FUNCTION effect_goes_with_its_job();

CREATE TRIGGER effect_whole BEFORE TRUNCATE ON effect FOR EACH STATEMENT
EXECUTE FUNCTION refuse('the ledger is append-only');

-- Questions to people, each about one action.
CREATE TABLE approval (
  id          text COLLATE "C" NOT NULL PRIMARY KEY,
  tenant      text COLLATE "C" NOT NULL,
  job_id      text COLLATE "C" NOT NULL,
  step        text COLLATE "C" NOT NULL,     -- what waits for it
  state       text COLLATE "C" NOT NULL CHECK (state IN (
                'PENDING', 'APPROVED', 'REJECTED', 'EXPIRED', 'WITHDRAWN')),
  action_hash text COLLATE "C" NOT NULL,
  no          bigint NOT NULL,               -- grows with every change
  tick_at     float8,                        -- when to remind, escalate or expire next
  created_at  float8 NOT NULL,
  data        text   NOT NULL
) WITH (fillfactor = 50);

-- One question for one action, as long as it is open.
CREATE UNIQUE INDEX approval_asked ON approval (job_id, step, action_hash) WHERE state = 'PENDING';
CREATE INDEX approval_step ON approval (job_id, step, created_at);
CREATE INDEX approval_newest ON approval (state, created_at);
CREATE INDEX approval_tick ON approval (tick_at) WHERE tick_at IS NOT NULL;

CREATE TRIGGER approval_decided BEFORE UPDATE ON approval FOR EACH ROW
WHEN (OLD.state <> 'PENDING' OR NEW.no <= OLD.no)
EXECUTE FUNCTION refuse('an approval is decided once');

-- Links of mails, by which one person may decide about one approval, once.
CREATE TABLE link (
  id          text COLLATE "C" NOT NULL PRIMARY KEY,
  approval_id text COLLATE "C" NOT NULL,
  data        text   NOT NULL
);

CREATE INDEX link_approval ON link (approval_id);

-- What people must be told, kept until they have been: a row for each channel and recipient.
CREATE TABLE notice (
  id          text COLLATE "C" NOT NULL PRIMARY KEY,
  job_id      text COLLATE "C" NOT NULL,
  approval_id text COLLATE "C",
  channel     text COLLATE "C" NOT NULL,
  recipient   text COLLATE "C" NOT NULL,
  kind        text   NOT NULL,
  state       text COLLATE "C" NOT NULL CHECK (
    state IN ('WAITING', 'SENDING', 'ADDRESSED', 'DELIVERED', 'GIVEN_UP')),
  due_at      float8 NOT NULL,
  data        text   NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX notice_due ON notice (channel, due_at) WHERE state IN ('WAITING', 'SENDING');
CREATE INDEX notice_recipient ON notice (channel, recipient, due_at)
  WHERE state IN ('WAITING', 'SENDING');
CREATE INDEX notice_job ON notice (job_id);
CREATE INDEX notice_approval ON notice (approval_id) WHERE approval_id IS NOT NULL;

-- What a job and its children may spend, and what is gone.
CREATE TABLE budget (
  root_id text COLLATE "C" NOT NULL PRIMARY KEY,
  no      bigint NOT NULL,
  data    text   NOT NULL
) WITH (fillfactor = 50);
