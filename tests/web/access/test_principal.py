"""Roles and permissions: deny by default, and what never follows from what."""

import pytest

from perdure.web.access.principal import (
    FLEET_ONLY,
    GRANTED,
    PEOPLE_ONLY,
    Permission,
    Principal,
    Role,
)


def principal(*roles: Role, tenant: str | None = None, **more: object) -> Principal:
    return Principal(id="ann", tenant=tenant, roles=frozenset(roles), **more)  # pyright: ignore[reportArgumentType] -- given by name


def test_without_a_role_nothing_is_permitted() -> None:
    assert principal().permissions == frozenset()


def test_every_role_has_its_line_in_the_table() -> None:
    assert set(GRANTED) == set(Role)


def test_every_permission_is_granted_by_some_role() -> None:
    assert frozenset().union(*GRANTED.values()) == frozenset(Permission)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.ADMIN, Role.SERVICE])
def test_only_an_approver_decides(role: Role) -> None:
    assert not principal(role).permissions & PEOPLE_ONLY


def test_an_approver_does_not_touch_jobs() -> None:
    touched = {each for each in principal(Role.APPROVER).permissions if not each.endswith(".read")}
    assert touched == PEOPLE_ONLY


def test_a_viewer_only_reads() -> None:
    assert all(each.endswith(".read") for each in principal(Role.VIEWER).permissions)


def test_a_service_account_never_decides_whatever_its_roles() -> None:
    program = principal(*Role, kind="service")
    assert not program.permissions & PEOPLE_ONLY
    assert program.may(Permission.JOBS_SUBMIT)


def test_a_scope_takes_away_and_never_adds() -> None:
    limited = principal(
        Role.VIEWER, scopes=frozenset({Permission.JOBS_READ, Permission.JOBS_CANCEL})
    )
    assert limited.permissions == {Permission.JOBS_READ}


@pytest.mark.parametrize("role", list(Role))
def test_a_principal_of_one_tenant_never_commands_the_fleet(role: Role) -> None:
    assert not principal(role, tenant="acme").permissions & FLEET_ONLY
    assert not principal(role, tenant="").permissions & FLEET_ONLY


def test_whoever_runs_the_installation_commands_the_fleet() -> None:
    assert principal(Role.ADMIN).permissions >= FLEET_ONLY
