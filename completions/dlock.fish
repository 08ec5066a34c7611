# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_dlock_global_optspecs
    string join \n config= h/help V/version
end

function __fish_dlock_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_dlock_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_dlock_using_subcommand
    set -l cmd (__fish_dlock_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c dlock -n "__fish_dlock_needs_command" -l config -d 'TOML file with defaults and overrides (default: $DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_needs_command" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_needs_command" -s V -l version -d 'Print version'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "run" -d 'Take the lock, run a command, renew while it runs, release'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "acquire" -d 'Take the lock and print its token'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "refresh" -d 'Renew a lease'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "release" -d 'Release a lease if the token holds it'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "status" -d 'Who holds it, who waits'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "list" -d 'All locks in the store'
complete -c dlock -n "__fish_dlock_needs_command" -f -a "break" -d 'End somebody else\'s lease'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l config -d 'TOML file with defaults and overrides (default: $DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand run" -s r -l resource -d 'What to lock' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l store -d 'Where locks live (default: $DLOCK_STORE, else a local directory)' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s t -l ttl -d 'Lease length [default: 30s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s w -l wait -d 'How long to wait when busy' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l retry-count -d 'Try this many times more, without joining the line' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l retry-delay -d 'Between those tries [default: 200ms]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l slots -d 'Be one of at most N holders' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s E -l busy-code -d 'Exit status when busy' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l label -d 'Shown with the holder' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l kill-after -d 'Grace between TERM and KILL; if given, after a TERM passed on too [default: TTL/4, at most 10s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l on-lost -d 'What to do with the command when the lease is lost: stop or continue [default: stop]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l survivors -d 'What it leaves behind after an end by itself: ignore, wait for or kill it [default: ignore]' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -l max-runtime -d 'Stop the command after this long, exit 124' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s c -l shell -d 'Run one string by /bin/sh -c' -r
complete -c dlock -n "__fish_dlock_using_subcommand run" -s n -l no-wait -d 'Do not wait (the default)'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s s -l shared -d 'Share it with others that share it'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s q -l quiet -d 'Say nothing when busy'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s v -l verbose -d 'Say more'
complete -c dlock -n "__fish_dlock_using_subcommand run" -l no-release -d 'Let the lease run out by itself instead of releasing it'
complete -c dlock -n "__fish_dlock_using_subcommand run" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l config -d 'TOML file with defaults and overrides (default: $DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s r -l resource -d 'What to lock' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l store -d 'Where locks live (default: $DLOCK_STORE, else a local directory)' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s t -l ttl -d 'Lease length [default: 30s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s w -l wait -d 'How long to wait when busy' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l retry-count -d 'Try this many times more, without joining the line' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l retry-delay -d 'Between those tries [default: 200ms]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l slots -d 'Be one of at most N holders' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s E -l busy-code -d 'Exit status when busy' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l label -d 'Shown with the holder' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -l format -d 'What to print: token, env (lines for eval) or json [default: token]' -r
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s n -l no-wait -d 'Do not wait (the default)'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s s -l shared -d 'Share it with others that share it'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s q -l quiet -d 'Say nothing when busy'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s v -l verbose -d 'Say more'
complete -c dlock -n "__fish_dlock_using_subcommand acquire" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand refresh" -l config -d 'TOML file with defaults and overrides (default: $DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand refresh" -s r -l resource -d 'What to lock' -r
complete -c dlock -n "__fish_dlock_using_subcommand refresh" -l store -d 'Where locks live (default: $DLOCK_STORE, else a local directory)' -r
complete -c dlock -n "__fish_dlock_using_subcommand refresh" -l token -d 'The token that acquire printed (default: $DLOCK_TOKEN)' -r
complete -c dlock -n "__fish_dlock_using_subcommand refresh" -s t -l ttl -d 'New lease length [default: 30s]' -r
complete -c dlock -n "__fish_dlock_using_subcommand refresh" -l json -d 'One JSON document'
complete -c dlock -n "__fish_dlock_using_subcommand refresh" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand release" -l config -d 'TOML file with defaults and overrides (default: $DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand release" -s r -l resource -d 'What to lock' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l store -d 'Where locks live (default: $DLOCK_STORE, else a local directory)' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -l token -d 'The token that acquire printed (default: $DLOCK_TOKEN)' -r
complete -c dlock -n "__fish_dlock_using_subcommand release" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand status" -l config -d 'TOML file with defaults and overrides (default: $DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand status" -s r -l resource -d 'What to lock' -r
complete -c dlock -n "__fish_dlock_using_subcommand status" -l store -d 'Where locks live (default: $DLOCK_STORE, else a local directory)' -r
complete -c dlock -n "__fish_dlock_using_subcommand status" -l token -d 'Ask whether this token holds it' -r
complete -c dlock -n "__fish_dlock_using_subcommand status" -l json -d 'One JSON document'
complete -c dlock -n "__fish_dlock_using_subcommand status" -l watch -d 'Show it at the terminal, once a second, until a signal ends it'
complete -c dlock -n "__fish_dlock_using_subcommand status" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand list" -l config -d 'TOML file with defaults and overrides (default: $DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand list" -l store -d 'Where locks live (default: $DLOCK_STORE, else a local directory)' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -l sort -d 'By name, or by age: the longest held first [default: name]' -r
complete -c dlock -n "__fish_dlock_using_subcommand list" -l json -d 'One JSON document'
complete -c dlock -n "__fish_dlock_using_subcommand list" -l watch -d 'Show it at the terminal, once a second, until a signal ends it'
complete -c dlock -n "__fish_dlock_using_subcommand list" -s h -l help -d 'Print help'
complete -c dlock -n "__fish_dlock_using_subcommand break" -l config -d 'TOML file with defaults and overrides (default: $DLOCK_CONFIG)' -r -F
complete -c dlock -n "__fish_dlock_using_subcommand break" -s r -l resource -d 'What to lock' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l store -d 'Where locks live (default: $DLOCK_STORE, else a local directory)' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l slot -d 'Only the holder of this slot' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l holder -d 'Only this holder: its fencing token, or its pid or HOST:PID' -r
complete -c dlock -n "__fish_dlock_using_subcommand break" -l yes -d 'Do not ask'
complete -c dlock -n "__fish_dlock_using_subcommand break" -l json -d 'One JSON document'
complete -c dlock -n "__fish_dlock_using_subcommand break" -s h -l help -d 'Print help'
