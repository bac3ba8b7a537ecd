# Completion of launch and test-distributed in fish. To install it:
#   {install}

function __launch_complete
    set -l token (string unescape -- (commandline -ct); or commandline -ct)
    set -l lines
    command -q launch # fish itself would say that there is none
    and set lines (command launch __complete fish (commandline -opc) "$token" 2>/dev/null </dev/null)
    string join \n -- $lines[2..]
    set -l kept (string match -r -- '^--[^=]*=' "$token"; or echo)
    set -l path (string replace -- "$kept" '' "$token")
    switch "$lines[1]"
        case file "" # nothing was answered
            string join \n -- $kept(__fish_complete_path "$path")
        case directory
            string join \n -- $kept(__fish_complete_directories "$path")
    end
end
complete -c launch -f -k -a '(__launch_complete)'
complete -c test-distributed -f -k -a '(__launch_complete)'
