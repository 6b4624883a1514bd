%% The workloads on the BEAM: beam:main(["pingpong", "30000"]) prints one line of JSON,
%% {"value": ...}: the seconds of so many operations, or their bytes.
%%
%% The seconds are those of the processor, as everywhere in these benchmarks. Erlang counts them in
%% whole milliseconds for the whole virtual machine, so a workload is repeated until they are many.
-module(beam).
-behaviour(gen_server).
-export([main/1]).
-export([start_server/1, init/1, handle_call/3, handle_cast/2]).

-define(ENOUGH, 300).  % milliseconds
-define(SENDERS, 100).
-define(BURST, 100).
-define(TIMEOUT, 5000).
-define(RESTARTS, 50).  % of one supervisor, which keeps a list of the recent ones
-define(PAGE, 4096).

main([Name, Number]) ->
    logger:set_primary_config(level, none),  % crashes are meant, and no part of the work
    Workload = list_to_existing_atom(Name),
    N = list_to_integer(Number),
    Parent = self(),
    %% A process of its own: the one that init runs us in has other duties.
    spawn(fun() -> Parent ! {value, value(Workload, N)} end),
    receive
        {value, Value} -> io:format("{\"value\": ~w}~n", [Value])
    end,
    halt(0).

value(idle, N) -> idle(N);
value(Workload, N) -> seconds(Workload, N, 0, 0).

seconds(_Workload, _N, Rounds, Total) when Total >= ?ENOUGH ->
    Total / Rounds / 1000;
seconds(Workload, N, Rounds, Total) ->
    seconds(Workload, N, Rounds + 1, Total + milliseconds(Workload, N)).

%% The time of the hot part alone.
clock(Work) ->
    {Began, _} = erlang:statistics(runtime),
    Work(),
    {Ended, _} = erlang:statistics(runtime),
    Ended - Began.

%% Processes

milliseconds(pingpong, N) ->
    Partner = spawn(fun pong/0),
    Taken = clock(fun() -> ping(Partner, N) end),
    exit(Partner, kill),
    Taken;
milliseconds(call, N) ->
    Server = spawn(fun serve/0),
    Taken = clock(fun() -> call(Server, N) end),
    exit(Server, kill),
    Taken;
milliseconds(fan_in, N) ->
    Receiver = self(),
    Each = N div ?SENDERS,
    clock(fun() ->
        [spawn(fun() -> send(Receiver, Each) end) || _ <- lists:seq(1, ?SENDERS)],
        drain(Each * ?SENDERS)
    end);
milliseconds(spawn, N) ->
    clock(fun() -> spawn_all(N) end);
milliseconds(cascade, N) ->
    Watcher = self(),
    First = spawn(fun() -> chain(N, Watcher) end),
    Last = receive {last, Pid} -> Pid end,
    Monitor = monitor(process, Last),
    clock(fun() ->
        exit(First, kill),
        receive {'DOWN', Monitor, process, Last, _} -> ok end
    end);

%% OTP

milliseconds(server_call, N) ->
    with_server(fun(Server) -> server_calls(Server, N) end);
milliseconds(agent_update, N) ->
    with_server(fun(Server) -> updates(Server, N) end);
milliseconds(restart, N) when N > ?RESTARTS ->
    milliseconds(restart, ?RESTARTS) + milliseconds(restart, N - ?RESTARTS);
milliseconds(restart, N) ->
    {ok, Supervisor} = supervisor:start_link(?MODULE, {supervisor, self()}),
    Server = receive {up, Pid} -> Pid end,
    Taken = clock(fun() -> restarts(Server, N) end),
    unlink(Supervisor),
    exit(Supervisor, kill),
    Taken.

ping(_Partner, 0) ->
    ok;
ping(Partner, Left) ->
    Partner ! {self(), Left},
    receive
        Left -> ping(Partner, Left - 1)
    end.

pong() ->
    receive
        {Sender, Payload} ->
            Sender ! Payload,
            pong()
    end.

%% A call by hand, as gen_server does it: with a time-out, and with a monitor of the server.
call(_Server, 0) ->
    ok;
call(Server, Left) ->
    Monitor = monitor(process, Server),
    Server ! {self(), Monitor, Left},
    receive
        {Monitor, Left} -> demonitor(Monitor, [flush]);
        {'DOWN', Monitor, process, Server, Reason} -> exit(Reason)
    after ?TIMEOUT -> exit(timeout)
    end,
    call(Server, Left - 1).

serve() ->
    receive
        {Client, Monitor, Request} ->
            Client ! {Monitor, Request},
            serve()
    end.

send(_Receiver, 0) ->
    ok;
send(Receiver, Left) ->
    Receiver ! Left,
    Left rem ?BURST =:= 1 andalso erlang:yield(),
    send(Receiver, Left - 1).

drain(0) ->
    ok;
drain(Left) ->
    receive
        _ -> drain(Left - 1)
    end.

%% One scheduler runs processes in the order of their start: when the last is dead, all are.
spawn_all(1) ->
    {Last, Monitor} = spawn_monitor(fun() -> ok end),
    receive
        {'DOWN', Monitor, process, Last, _} -> ok
    end;
spawn_all(Left) ->
    spawn(fun() -> ok end),
    spawn_all(Left - 1).

chain(1, Watcher) ->
    Watcher ! {last, self()},
    wait();
chain(Left, Watcher) ->
    spawn_link(fun() -> chain(Left - 1, Watcher) end),
    wait().

wait() ->
    receive
        stop -> ok
    end.

idle(N) ->
    erlang:garbage_collect(),
    Before = resident_bytes(),
    Processes = [spawn(fun wait/0) || _ <- lists:seq(1, N)],
    [wait_until_idle(Process) || Process <- Processes],
    resident_bytes() - Before.

wait_until_idle(Process) ->
    case process_info(Process, status) of
        {status, waiting} ->
            ok;
        _ ->
            erlang:yield(),
            wait_until_idle(Process)
    end.

resident_bytes() ->
    {ok, Sizes} = file:read_file("/proc/self/statm"),
    [_, Resident | _] = string:lexemes(binary_to_list(Sizes), " "),
    list_to_integer(Resident) * ?PAGE.

with_server(Work) ->
    {ok, Server} = gen_server:start(?MODULE, {server, self()}, []),
    receive
        {up, Server} -> ok
    end,
    Taken = clock(fun() -> Work(Server) end),
    exit(Server, kill),
    Taken.

server_calls(_Server, 0) ->
    ok;
server_calls(Server, Left) ->
    Left = gen_server:call(Server, Left, ?TIMEOUT),
    server_calls(Server, Left - 1).

updates(_Server, 0) ->
    ok;
updates(Server, Left) ->
    ok = gen_server:call(Server, {update, fun(Count) -> Count + 1 end}, ?TIMEOUT),
    updates(Server, Left - 1).

restarts(_Server, 0) ->
    ok;
restarts(Server, Left) ->
    gen_server:cast(Server, crash),
    Next = receive {up, Pid} -> Pid end,
    Left = gen_server:call(Next, Left, ?TIMEOUT),
    restarts(Next, Left - 1).

start_server(Client) ->
    gen_server:start_link(?MODULE, {server, Client}, []).

init({server, Client}) ->
    Client ! {up, self()},
    {ok, 0};
init({supervisor, Client}) ->
    Child = #{id => server, start => {?MODULE, start_server, [Client]}},
    {ok, {#{strategy => one_for_one, intensity => ?RESTARTS, period => 5}, [Child]}}.

handle_call({update, Function}, _From, State) ->
    {reply, ok, Function(State)};
handle_call(Request, _From, State) ->
    {reply, Request, State}.

handle_cast(crash, _State) ->
    error(crash).
