#compdef launch test-distributed
# Completion of launch and test-distributed in zsh. To install it:
#   {install}

_launch() {
    local -a lines
    local what
    lines=("${(@f)$(command launch __complete zsh "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null </dev/null)}")
    what=$lines[1]
    shift lines
    local -a options
    [[ $what == list ]] && options=(-S '')
    (( $#lines )) && _describe -V word lines "${options[@]}"
    [[ $PREFIX == --*=* ]] && compset -P '*='
    case $what in
        file | '') _files ;; # nothing was answered
        directory) _files -/ ;;
    esac
}

if [[ $funcstack[1] == _launch ]]; then # a file of fpath, called for the first time
    _launch "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef _launch launch test-distributed
fi
