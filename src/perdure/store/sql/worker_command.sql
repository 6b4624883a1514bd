-- name: is_registered
SELECT 1 FROM worker WHERE owner = :owner

-- name: ask_worker
INSERT INTO worker_command (id, owner, action, data, asked_by, asked_at, expires_at)
VALUES (:id, :owner, :action, :data, :asked_by, :now, :expires_at)

-- name: forget_commands
DELETE FROM worker_command WHERE asked_at < :before OR (answer IS NULL AND expires_at < :now)

-- name: open_commands
SELECT id, owner, action, data, asked_by FROM worker_command
WHERE owner = :owner AND answer IS NULL AND expires_at > :now
ORDER BY asked_at, id
LIMIT :limit

-- name: answer_command
UPDATE worker_command SET answer = :answer, answered_at = :now WHERE id = :id AND answer IS NULL

-- name: command_answer
SELECT answer, (SELECT 1 FROM worker WHERE worker.owner = worker_command.owner)
FROM worker_command WHERE id = :id

-- name: withdraw_command
DELETE FROM worker_command WHERE id = :id AND answer IS NULL
