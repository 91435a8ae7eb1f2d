# fish completion for atlctl. Print it with: atlctl completion fish
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
