%% Ping-pong of two processes on the BEAM: prints the seconds of all round trips as a line of JSON.
-module(beam_pingpong).
-export([main/1]).

main([Text]) ->
    Rounds = list_to_integer(Text),
    Parent = self(),
    %% A process of its own: the one that init runs us in has other duties.
    spawn(fun() -> Parent ! {nanoseconds, ping(Rounds)} end),
    receive
        {nanoseconds, Total} ->
            io:format("{\"seconds\": ~.6f}~n", [Total / 1.0e9])
    end,
    halt(0).

ping(Rounds) ->
    Partner = spawn(fun pong/0),
    Began = erlang:monotonic_time(nanosecond),
    rally(Partner, Rounds),
    erlang:monotonic_time(nanosecond) - Began.

rally(_Partner, 0) ->
    ok;
rally(Partner, Left) ->
    Partner ! {self(), Left},
    receive
        Left -> rally(Partner, Left - 1)
    end.

pong() ->
    receive
        {Sender, Payload} ->
            Sender ! Payload,
            pong()
    end.
