%% Calls of a gen_server on the BEAM: prints the seconds of all of them as a line of JSON.
-module(beam_call).
-behaviour(gen_server).
-export([main/1]).
-export([init/1, handle_call/3, handle_cast/2]).

main([Text]) ->
    Calls = list_to_integer(Text),
    Parent = self(),
    %% A process of its own: the one that init runs us in has other duties.
    spawn(fun() -> Parent ! {nanoseconds, client(Calls)} end),
    receive
        {nanoseconds, Total} ->
            io:format("{\"seconds\": ~.6f}~n", [Total / 1.0e9])
    end,
    halt(0).

client(Calls) ->
    {ok, Server} = gen_server:start(?MODULE, [], []),
    Began = erlang:monotonic_time(nanosecond),
    ask(Server, Calls),
    erlang:monotonic_time(nanosecond) - Began.

ask(_Server, 0) ->
    ok;
ask(Server, Left) ->
    Left = gen_server:call(Server, Left, 5000),
    ask(Server, Left - 1).

init([]) ->
    {ok, none}.

handle_call(Request, _From, State) ->
    {reply, Request, State}.

handle_cast(_Request, State) ->
    {noreply, State}.
