"""The completion scripts, one per shell. `completions/` in the source tree is generated from these.

None of them evaluates an answer: candidates go into arrays as they came, line by line.
"""

BASH = r"""# bash completion for atlctl. Print it with: atlctl completion bash
# Works with bash 3.2: without compopt, files are listed here.
_atlctl() {
    local current=${COMP_WORDS[COMP_CWORD]} program=${COMP_WORDS[0]/#\~\//$HOME/} line
    local -a answer
    answer=()
    COMPREPLY=()
    # An alias of atlctl is not a program.
    type -P -- "$program" >/dev/null || program=atlctl
    while IFS= read -r line; do
        answer+=("$line")
    done < <("$program" --complete bash "$COMP_CWORD" "${COMP_WORDS[@]}" 2>/dev/null)
    case "${answer[0]-}" in
        :words) ;;
        :files) __atlctl_else default -f ;;
        :folders) __atlctl_else dirnames -d ;;
        :commands) __atlctl_else filenames -c ;;
        *) return ;;
    esac
    unset 'answer[0]'
    (( ${#answer[@]} )) || return
    COMPREPLY+=("${answer[@]}")
    # A name with a colon at its end is not the whole word.
    [[ ${COMPREPLY[0]} != *: ]] || compopt -o nospace 2>/dev/null
    return 0  # bash takes the 127 of a missing compopt for a missing _atlctl
}
# Other completions: $1 is the option of compopt that lists them, $2 that of compgen.
__atlctl_else() {
    local quoted_by_bash=
    if [[ $1 = filenames ]]; then
        compopt -o filenames 2>/dev/null && quoted_by_bash=yes
    elif (( ${#answer[@]} == 1 )) && compopt -o "$1" 2>/dev/null; then
        return
    fi
    while IFS= read -r line; do
        [[ $quoted_by_bash ]] || printf -v line %q "$line"
        COMPREPLY+=("$line")
    done < <(compgen "$2" -- "$current")
}
complete -F _atlctl atlctl
"""

ZSH = r"""#compdef atlctl
# zsh completion for atlctl. Print it with: atlctl completion zsh
_atlctl() {
    local -a answer typed unfinished names shown
    local program kind line tab=$'\t'
    local -i width=0
    typed=("${(@Q)words}")
    # Without the quote that it begins with and is not closed yet.
    typed[CURRENT]="${(Q)PREFIX}"
    program="${typed[1]/#\~\//$HOME/}"
    # An alias of atlctl is not a program.
    whence -p -- "$program" >/dev/null || program=atlctl
    answer=("${(@f)$(command "$program" --complete zsh+ $((CURRENT - 1)) "${(@)typed}" 2>/dev/null)}")
    kind="${answer[1]}"
    shift answer
    # A name with a colon at its end is not the whole word.
    unfinished=("${(@M)answer:#*:}")
    answer=("${(@)answer:#*:}")
    (( ${#unfinished} )) && compadd -S '' -a -- unfinished
    # Behind a tab is a description. Lines that are wider than the screen would be listed in several.
    names=("${(@)answer%%$tab*}")
    for line in "${(@)names}"; do (( ${#line} > width )) && width=${#line}; done
    for line in "${(@)answer}"; do
        if [[ "$line" == *$tab* ]]; then
            line="${(r:width:)${line%%$tab*}}  -- ${line#*$tab}"
            (( ${(m)#line} < COLUMNS )) || line="${(mr:COLUMNS - 4:)line}..."
        fi
        shown+=("$line")
    done
    if [[ "${answer[*]}" == *$tab* ]]; then
        compadd -l -d shown -a -- names
    elif (( ${#names} )); then
        compadd -a -- names
    fi
    case "$kind" in
        :files) _files ;;
        :folders) _files -/ ;;
        :commands) if [[ "$PREFIX" == */* ]]; then _files; else _command_names -e; fi ;;
    esac
}
if [ "${funcstack[1]}" = _atlctl ]; then
    _atlctl "$@"
else
    compdef _atlctl atlctl
fi
"""

FISH = r"""# fish completion for atlctl. Print it with: atlctl completion fish
function __atlctl_complete
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~/' "$HOME/" -- $typed[1])
    # An alias of atlctl is not a program.
    type -q -f -- "$program"; or set program atlctl
    set -l answer (command $program --complete fish+ (count $typed) $typed "$current" 2>/dev/null)
    printf '%s\n' $answer[2..-1]
    switch "$answer[1]"
        case :files
            __fish_complete_path "$current"
        case :folders
            __fish_complete_directories "$current"
        case :commands
            # It runs substitutions of commands in what was typed.
            string match -qr '^[\w./+-]*$' -- "$current"; and __fish_complete_command
    end
end
complete -c atlctl -f -a '(__atlctl_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}

#: File names the shells expect.
FILES = {"bash": "atlctl", "zsh": "_atlctl", "fish": "atlctl.fish"}
