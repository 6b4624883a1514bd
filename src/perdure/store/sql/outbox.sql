-- name: put_notice
INSERT INTO notice (id, job_id, approval_id, channel, recipient, kind, state, due_at, data)
VALUES (:id, :job_id, :approval_id, :channel, :recipient, :kind, :state, :due_at, :data)
ON CONFLICT DO NOTHING

-- name: take_notices
-- One at a time to each recipient: a recipient that does not answer holds up nobody else,
-- and a decision never overtakes the question that is being sent.
UPDATE notice SET state = 'SENDING', due_at = :until
WHERE id IN (  -- sqlite
WHERE id = ANY(ARRAY(  -- postgres
  SELECT id FROM notice AS this
  WHERE state IN ('WAITING', 'SENDING') AND due_at <= :now
    AND channel IN (SELECT value FROM json_each(:channels))  -- sqlite
    AND channel = ANY(:channels)  -- postgres
    AND (recipient = '' OR NOT EXISTS (
      SELECT 1 FROM notice AS other
      WHERE other.channel = this.channel AND other.recipient = this.recipient
        AND other.state IN ('WAITING', 'SENDING')
        AND ((other.state = 'SENDING' AND other.due_at > :now)
          OR (other.due_at, other.id) < (this.due_at, this.id))))
  ORDER BY due_at
  LIMIT :limit
  FOR UPDATE OF this SKIP LOCKED  -- postgres
)  -- sqlite
))  -- postgres
RETURNING data, state, due_at, id

-- name: change_notice
UPDATE notice SET state = :state, due_at = :due_at, data = :data
WHERE id = :id AND state IN ('WAITING', 'SENDING')

-- name: channels_asked
SELECT channel FROM notice WHERE approval_id = :id AND kind = 'approval.asked' AND recipient = ''

-- name: notice_that_asked
SELECT data, state, due_at, id FROM notice
WHERE approval_id = :id AND kind = 'approval.asked' AND state = 'DELIVERED'
  AND channel = :channel AND recipient = :recipient

-- name: delete_notices
DELETE FROM notice
WHERE job_id IN (SELECT value FROM json_each(:ids))  -- sqlite
WHERE job_id = ANY(:ids)  -- postgres

-- name: alerts_of
SELECT data, state, due_at, id FROM notice
WHERE job_id = :id AND recipient = '' AND kind >= 'alert.' AND kind < 'alert/'

-- name: has_notice
SELECT 1 FROM notice WHERE id = :id

-- name: forget_worker_notices
-- Notices about workers belong to no job: they are named `worker ` and its id.
DELETE FROM notice WHERE job_id >= 'worker ' AND job_id < 'worker!' AND due_at < :before
