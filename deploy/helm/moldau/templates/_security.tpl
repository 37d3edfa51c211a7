{{/* The Secret with a key store and what it trusts: a list of the root and broker, controller or admin. */}}
{{- define "moldau.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- $whose := index . 1 -}}
{{- $certificates := $root.Values.security.certificates -}}
{{- if eq $certificates.from "existing" -}}
{{- required (printf "security.certificates.existing.%s names no Secret" $whose) (index $certificates.existing $whose) -}}
{{- else -}}
{{- printf "%s-%s-tls" (include "moldau.fullname" $root) $whose -}}
{{- end -}}
{{- end -}}

{{- define "moldau.adminSecret" -}}
{{- default (printf "%s-admin" (include "moldau.fullname" .)) .Values.security.admin.existingSecret -}}
{{- end -}}

{{/* What a user's certificate or a node's is valid for: a list of the root and the role. One name for each line. */}}
{{- define "moldau.hosts" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $name := include "moldau.fullname" $root -}}
{{- $suffix := printf "%s.svc.%s" $root.Release.Namespace $root.Values.clusterDomain -}}
*.{{ $name }}-{{ $role }}.{{ $suffix }}
{{/* Prometheus asks pods by their addresses, and checks this name. */ -}}
metrics.{{ $name }}.{{ $root.Release.Namespace }}.svc
{{- if eq $role "broker" }}
{{ $name }}-bootstrap
{{ $name }}-bootstrap.{{ $root.Release.Namespace }}
{{ $name }}-bootstrap.{{ $root.Release.Namespace }}.svc
{{ $name }}-bootstrap.{{ $suffix }}
{{- if $root.Values.brokers.external.enabled }}
{{- range $root.Values.brokers.external.hosts }}
{{ . }}
{{- end }}
{{- end }}
{{- range $root.Values.security.certificates.hosts }}
{{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The nodes' roles that have pods, for certificates. */}}
{{- define "moldau.roles" -}}
broker{{ if not .Values.combined }} controller{{ end }}
{{- end -}}

{{/* Whether a job makes passwords or certificates. */}}
{{- define "moldau.makesSecrets" -}}
{{- $security := .Values.security -}}
{{- if $security.enabled -}}
{{- if or (eq $security.certificates.from "job") (not $security.admin.existingSecret) (include "moldau.madePasswords" .) }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* The users whose passwords a job makes. */}}
{{- define "moldau.madePasswords" -}}
{{- range .Values.security.users }}{{ if not .existingSecret }} {{ .name }}{{ end }}{{ end -}}
{{- end -}}

{{/* How the `moldau` command in a pod finds the cluster: a list of the root and the role. */}}
{{- define "moldau.clientEnvironment" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.security.enabled -}}
- name: MOLDAU_CONFIG_HOME
  value: /etc/moldau/client
- name: MOLDAU_PROFILE
  value: {{ if eq (index . 1) "controller" }}controllers{{ else }}admin{{ end }}
{{- else -}}
- name: MOLDAU_BOOTSTRAP_SERVER
  value: {{ include "moldau.fullname" $root }}-bootstrap.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}:9092
{{- end }}
{{- end -}}

{{/* The super user's settings and secrets. A person who may run commands in a node's pod can act as that node already. */}}
{{- define "moldau.adminVolumes" -}}
- name: client
  configMap:
    name: {{ include "moldau.fullname" . }}-client
- name: admin
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ include "moldau.adminSecret" . }}
          items: [{key: password, path: password}]
      - secret:
          name: {{ include "moldau.tlsSecret" (list . "admin") }}
          items: [{key: tls-combined.pem, path: tls-combined.pem}, {key: ca.crt, path: ca.crt}]
{{- end -}}

{{- define "moldau.adminMounts" -}}
- name: client
  mountPath: /etc/moldau/client/profiles
  readOnly: true
- name: admin
  mountPath: /etc/moldau/admin
  readOnly: true
{{- end -}}

{{/* What a job's pod has: a list of the root and the name of its service account. */}}
{{- define "moldau.jobPod" -}}
{{- $root := index . 0 -}}
restartPolicy: Never
serviceAccountName: {{ index . 1 }}
enableServiceLinks: false
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What a job's container has. */}}
{{- define "moldau.jobContainer" -}}
image: {{ include "moldau.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.containerSecurityContext | nindent 2 }}
resources:
  {{- toYaml .Values.jobs.resources | nindent 2 }}
{{- end -}}

{{/* The pod of the job that makes secrets: a list of the root and the name of its service account. */}}
{{- define "moldau.secretsPod" -}}
{{- $root := index . 0 -}}
{{- $name := include "moldau.fullname" $root -}}
{{- $security := $root.Values.security -}}
{{- $byJob := eq $security.certificates.from "job" -}}
{{- $passwords := list -}}
{{- if not $security.admin.existingSecret }}{{ $passwords = list "admin" }}{{ end -}}
{{- range $security.users }}{{ if not .existingSecret }}{{ $passwords = append $passwords .name }}{{ end }}{{ end -}}
{{ include "moldau.jobPod" . }}
automountServiceAccountToken: true
volumes:
  - name: temporary
    emptyDir: {sizeLimit: 64Mi, medium: Memory}
containers:
  - name: secrets
    command: [moldau-kubernetes, secrets]
    {{- include "moldau.jobContainer" $root | nindent 4 }}
    env:
      # What to make, and which Secrets it is kept in.
      - name: MOLDAU_SECRETS
        value: |
          {
            {{- if $byJob }}
            "nodes": {
              {{- range $index, $role := splitList " " (include "moldau.roles" $root) }}{{ if $index }},{{ end }}
              {{ printf "%s-%s" $name $role | quote }}: {{ include "moldau.hosts" (list $root $role) | splitList "\n" | toJson }}
              {{- end }}
            },
            "clients": ["admin"],
            {{- end }}
            "days": {{ int $security.certificates.days }}, "renew_days": {{ int $security.certificates.renewDays }},
            "passwords": {{ toJson $passwords }}
          }
      - name: MOLDAU_KUBERNETES_SECRETS
        value: |
          {
            {{- if $byJob }}
            "authority": "{{ $name }}-authority",
            "stores": {
              {{- range $role := splitList " " (include "moldau.roles" $root) }}
              {{ printf "%s-%s" $name $role | quote }}: {{ include "moldau.tlsSecret" (list $root $role) | quote }},
              {{- end }}
              "admin": {{ include "moldau.tlsSecret" (list $root "admin") | quote }}
            },
            {{- end }}
            "passwords": {
              {{- range $index, $user := $passwords }}{{ if $index }},{{ end }}
              {{ quote $user }}: {{ if eq $user "admin" }}["{{ $name }}-admin", "password"]{{ else }}["{{ $name }}-users", {{ quote $user }}]{{ end }}
              {{- end }}
            },
            "labels": {"app.kubernetes.io/name": "{{ default $root.Chart.Name $root.Values.nameOverride }}", "app.kubernetes.io/instance": "{{ $root.Release.Name }}"}
          }
    volumeMounts:
      - name: temporary
        mountPath: /tmp
{{- end -}}

{{/* The Secrets that the job may read and change, as a list in JSON. */}}
{{- define "moldau.madeSecrets" -}}
{{- $root := . -}}
{{- $name := include "moldau.fullname" . -}}
{{- $security := .Values.security -}}
{{- $made := list -}}
{{- if eq $security.certificates.from "job" -}}
{{- $made = list (printf "%s-authority" $name) (include "moldau.tlsSecret" (list . "admin")) -}}
{{- range splitList " " (include "moldau.roles" .) }}{{ $made = append $made (include "moldau.tlsSecret" (list $root .)) }}{{ end -}}
{{- end -}}
{{- if not $security.admin.existingSecret }}{{ $made = append $made (printf "%s-admin" $name) }}{{ end -}}
{{- if include "moldau.madePasswords" . }}{{ $made = append $made (printf "%s-users" $name) }}{{ end -}}
{{- toJson $made -}}
{{- end -}}
