import asyncio
import copy

from perdure import process
from perdure.testing import simulate, simulated
from tests.support.processes import exit_of, give, others_rest, wait_forever


@simulated
async def test_a_process_has_one_pid_for_all_its_life() -> None:
    first = process.self_pid()
    await process.sleep("1s")
    assert process.self_pid() is first


@simulated
async def test_a_process_knows_the_pid_that_its_parent_got() -> None:
    async def child() -> process.Pid:
        return process.self_pid()

    pid = process.spawn_monitored(child)
    assert (await exit_of(pid)).value is pid


@simulated
async def test_pid_is_another_word_for_self_pid() -> None:
    assert process.pid() is process.self_pid()


@simulated
async def test_a_task_inside_a_process_has_the_pid_of_the_process() -> None:
    async def inner() -> process.Pid:
        return process.self_pid()

    assert await asyncio.create_task(inner()) is process.self_pid()


@simulated
async def test_two_processes_are_never_equal() -> None:
    one, other = process.spawn(wait_forever), process.spawn(wait_forever)
    assert one != other
    assert len({one, other, one}) == 2


@simulated
async def test_a_pid_is_a_key_also_after_the_death_of_its_process() -> None:
    pid = process.spawn_monitored(give)
    workers = {pid: "worker 1"}
    await exit_of(pid)
    assert workers[pid] == "worker 1"


@simulated
async def test_a_pid_prints_its_host_and_number_alive_or_dead() -> None:
    pid = process.spawn_monitored(give)
    text = str(pid)
    assert text == f"{{inline|{pid.number}}}"
    await exit_of(pid)
    assert str(pid) == repr(pid) == text


@simulated
async def test_the_pid_of_a_dead_process_is_not_used_again() -> None:
    pids = [process.spawn(give) for _ in range(50)]
    await others_rest()
    assert not any(process.alive(pid) for pid in pids)
    later = [process.spawn(give) for _ in range(50)]
    assert len({str(pid) for pid in pids + later}) == 100


@simulated
async def test_a_copy_of_a_pid_is_that_pid() -> None:
    pid = process.self_pid()
    assert copy.copy(pid) is pid
    assert copy.deepcopy({"worker": [pid]})["worker"][0] is pid


@simulated
async def test_a_pid_in_a_message_reaches_its_process() -> None:
    async def answer_to() -> None:
        message = await process.inbox().receive()
        process.send(message.payload, "answer", "here")

    process.send(process.spawn(answer_to), "who", process.self_pid())
    assert (await process.inbox().receive()).payload == "here"


@simulated
async def test_a_dead_pid_is_not_alive_and_takes_no_message() -> None:
    pid = process.spawn_monitored(give)
    await exit_of(pid)
    assert not process.alive(pid)
    assert process.send(pid, "topic") is False


@simulated
async def test_alive_takes_a_name_too() -> None:
    pid = process.spawn(wait_forever, name="worker")
    assert process.alive("worker")
    process.kill(pid)
    await others_rest()
    assert not process.alive("worker")


def test_a_pid_outlives_its_runtime_as_a_dead_one() -> None:
    async def main() -> process.Pid:
        return process.self_pid()

    assert not process.alive(simulate(main))
