"""The completion scripts, one per shell. `completions/` in the source tree is generated from these.

None of them evaluates an answer: candidates go into arrays as they came, line by line.
"""

BASH = r"""# bash completion for atlctl. Print it with: atlctl completion bash
_atlctl() {
    local -a answer=()
    COMPREPLY=()
    mapfile -t answer < <("${COMP_WORDS[0]/#\~\//$HOME/}" --complete bash "$COMP_CWORD" "${COMP_WORDS[@]}" 2>/dev/null)
    case "${answer[0]-}" in
        :files) compopt -o default ;;
        :folders) compopt -o dirnames ;;
        :words) COMPREPLY=("${answer[@]:1}") ;;
    esac
}
complete -F _atlctl atlctl
"""

ZSH = r"""#compdef atlctl
# zsh completion for atlctl. Print it with: atlctl completion zsh
_atlctl() {
    local -a answer typed
    typed=("${(@Q)words}")
    answer=("${(@f)$(command "${typed[1]/#\~\//$HOME/}" --complete zsh $((CURRENT - 1)) "${(@)typed}" 2>/dev/null)}")
    case "${answer[1]}" in
        :files) _files ;;
        :folders) _files -/ ;;
        :words)
            shift answer
            (( ${#answer} )) && compadd -a -- answer
            ;;
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
    set -l answer (command $program --complete fish (count $typed) $typed "$current" 2>/dev/null)
    switch "$answer[1]"
        case :files
            __fish_complete_path "$current"
        case :folders
            __fish_complete_directories "$current"
        case :words
            printf '%s\n' $answer[2..-1]
    end
end
complete -c atlctl -f -a '(__atlctl_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}

#: File names the shells expect.
FILES = {"bash": "atlctl.bash", "zsh": "_atlctl", "fish": "atlctl.fish"}
