-- name: save_workflow_checkpoint
INSERT INTO workflow_checkpoint (tenant, id, workflow, at, data)
VALUES (:tenant, :id, :workflow, :at, :data)
ON CONFLICT (tenant, id) DO UPDATE SET
  workflow = excluded.workflow, at = excluded.at, data = excluded.data

-- name: workflow_checkpoint
SELECT id, data FROM workflow_checkpoint WHERE tenant = :tenant AND id = :id

-- name: workflow_checkpoints
SELECT id, data FROM workflow_checkpoint
WHERE tenant = :tenant AND workflow = :workflow
ORDER BY at, id

-- name: newest_workflow_checkpoint
SELECT id, data FROM workflow_checkpoint
WHERE tenant = :tenant AND workflow = :workflow
ORDER BY at DESC, id DESC
LIMIT 1

-- name: workflow_checkpoint_ids
SELECT id FROM workflow_checkpoint
WHERE tenant = :tenant AND workflow = :workflow
ORDER BY at, id

-- name: delete_workflow_checkpoint
DELETE FROM workflow_checkpoint WHERE tenant = :tenant AND id = :id
