# bash completion for atlctl. Print it with: atlctl completion bash
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
