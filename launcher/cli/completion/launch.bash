# Completion of launch and test-distributed in bash 3.2 and newer, with and without bash-completion. To install it:
#   {install}

_launch() {
    local answer line what words
    COMPREPLY=()
    answer=$(command launch __complete bash "$1" "$2" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null </dev/null) || return 0
    [ -n "$answer" ] || return 0
    what=${answer%%$'\n'*}
    words=${answer#"$what"}
    while IFS= read -r line; do
        [ -z "$line" ] || COMPREPLY+=("$line")
    done <<<"$words"
    type compopt >/dev/null 2>&1 || return 0 # bash 3.2 offers files where there is no word
    case $what in
        file)
            [ ${#COMPREPLY[@]} -gt 0 ] || return 0 # bash itself offers files
            compopt -o filenames
            while IFS= read -r line; do
                COMPREPLY+=("$line")
            done < <(compgen -f -- "$2")
            ;;
        directory) compopt +o default -o dirnames ;;
        list) compopt +o default -o nospace ;;
        *) compopt +o default ;;
    esac
}
complete -o default -F _launch launch test-distributed
