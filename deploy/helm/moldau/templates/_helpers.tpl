{{/* What all objects are called. Short enough for the labels that StatefulSets add. */}}
{{- define "moldau.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "moldau.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "moldau.labels" -}}
{{ include "moldau.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "moldau.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "moldau.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "moldau.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "moldau.clusterId" -}}
{{- required "clusterId is needed: --set clusterId=$(moldau storage random-uuid)" .Values.clusterId -}}
{{- end -}}

{{/* The host name of a pod: a list of the root, the role and the node id. */}}
{{- define "moldau.host" -}}
{{- $root := index . 0 -}}
{{- $service := printf "%s-%s" (include "moldau.fullname" $root) (index . 1) -}}
{{- printf "%s-%d.%s.%s.svc.%s" $service (int (index . 2)) $service $root.Release.Namespace $root.Values.clusterDomain -}}
{{- end -}}

{{/* The role whose pods are the controllers, and the id of the first of them. */}}
{{- define "moldau.controllerRole" -}}
{{- if .Values.combined }}broker{{ else }}controller{{ end -}}
{{- end -}}

{{- define "moldau.firstController" -}}
{{- if .Values.combined }}1{{ else }}101{{ end -}}
{{- end -}}

{{/* controller.quorum.bootstrap.servers */}}
{{- define "moldau.controllers" -}}
{{- $root := . -}}
{{- $first := include "moldau.firstController" . | int -}}
{{- if and .Values.combined (gt (int .Values.controllers.replicas) (int .Values.brokers.replicas)) -}}
{{- fail "combined: the controllers are brokers, so controllers.replicas cannot be above brokers.replicas" -}}
{{- end -}}
{{- range $index := until (int .Values.controllers.replicas) -}}
{{- if $index }},{{ end -}}
{{- include "moldau.host" (list $root (include "moldau.controllerRole" $root) (add $first $index)) -}}:9093
{{- end -}}
{{- end -}}

{{/* The first voters. Their directory ids follow from the cluster's id, so that they stay the same. */}}
{{- define "moldau.initialControllers" -}}
{{- $root := . -}}
{{- $clusterId := include "moldau.clusterId" . -}}
{{- $first := include "moldau.firstController" . | int -}}
{{- range $index := until (int .Values.controllers.replicas) -}}
{{- $id := add $first $index -}}
{{- if $index }},{{ end -}}
{{- $id }}@{{ include "moldau.host" (list $root (include "moldau.controllerRole" $root) $id) }}:9093:{{ printf "%s/%d" $clusterId (int $id) | sha256sum | trunc 21 }}A
{{- end -}}
{{- end -}}

{{- define "moldau.founding" -}}
{{- $founding := .Values.quorum.founding -}}
{{- if or (eq $founding "always") (and (eq $founding "auto") .Release.IsInstall) -}}yes{{- end -}}
{{- end -}}

{{/* One line of server.properties that the values may replace: the root, the role's values, key and value. */}}
{{- define "moldau.default" -}}
{{- $root := index . 0 -}}
{{- $key := index . 2 -}}
{{- if not (or (hasKey $root.Values.config $key) (hasKey (index . 1).config $key)) }}
{{ $key }}={{ index . 3 }}
{{- end }}
{{- end -}}

{{/* The part of server.properties that both roles have: a list of the root and the role's values. */}}
{{- define "moldau.commonProperties" -}}
{{- $root := index . 0 -}}
{{- $pods := index . 1 -}}
{{- $copies := min 3 (int $root.Values.brokers.replicas) -}}
{{- range $key := list "default.replication.factor" "min.insync.replicas" "num.partitions" -}}
{{- if hasKey $pods.config $key -}}
{{- fail (printf "%s belongs into config, which is for all nodes: controllers decide it" $key) -}}
{{- end -}}
{{- end -}}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={{ include "moldau.controllers" $root }}
moldau.http.listener=0.0.0.0:8080
moldau.health.socket=/tmp/moldau-health
{{- if $root.Values.security.enabled }}
ssl.keystore.type=PEM
ssl.keystore.location=/etc/moldau/tls/tls-combined.pem
ssl.truststore.type=PEM
ssl.truststore.location=/etc/moldau/tls/ca.crt
listener.name.controller.ssl.client.auth=required
moldau.http.ssl.keystore.type=PEM
moldau.http.ssl.keystore.location=/etc/moldau/tls/tls-combined.pem
{{- /* A client's certificate names its user; a node's whole subject is its name, which no client can have. */}}
{{- include "moldau.default" (list $root $pods "ssl.principal.mapping.rules" "RULE:^CN=([^,]+),OU=clients$/$1/,DEFAULT") }}
{{- include "moldau.default" (list $root $pods "moldau.node.principals" "User:CN=*,OU=nodes") }}
{{- include "moldau.default" (list $root $pods "authorizer.class.name" "org.apache.kafka.metadata.authorizer.StandardAuthorizer") }}
{{- include "moldau.default" (list $root $pods "super.users" "User:admin") }}
{{- include "moldau.default" (list $root $pods "moldau.http.authentication" "BASIC") }}
{{- include "moldau.default" (list $root $pods "moldau.http.open.paths" "/healthz,/readyz,/metrics") }}
{{- end }}
{{- include "moldau.default" (list $root $pods "moldau.log.format" "json") }}
{{- include "moldau.default" (list $root $pods "default.replication.factor" $copies) }}
{{- include "moldau.default" (list $root $pods "min.insync.replicas" (sub $copies 1 | max 1)) }}
{{- range $key, $value := $root.Values.config }}
{{- if not (hasKey $pods.config $key) }}
{{ $key }}={{ if kindIs "string" $value }}{{ $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end }}
{{- range $key, $value := $pods.config }}
{{ $key }}={{ if kindIs "string" $value }}{{ $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end -}}

{{- define "moldau.controllerProperties" -}}
process.roles=controller
listeners=CONTROLLER://0.0.0.0:9093
{{- if .Values.security.enabled }}
listener.security.protocol.map=CONTROLLER:SSL
{{- end }}
log.dirs=/var/lib/moldau/data-0/log
{{ include "moldau.commonProperties" (list . .Values.controllers) }}
{{- end -}}

{{/* What a broker has: a list of the root, and whether it is a controller as well. */}}
{{- define "moldau.brokerProperties" -}}
{{- $root := index . 0 -}}
{{- $isController := index . 1 -}}
{{- $brokers := $root.Values.brokers -}}
{{- $copies := min 3 (int $brokers.replicas) -}}
{{- $outside := $brokers.external.enabled -}}
process.roles=broker{{ if $isController }},controller{{ end }}
{{- if $root.Values.security.enabled }}
listeners=CLIENT://0.0.0.0:9092,INTERNAL://0.0.0.0:9091{{ if $outside }},EXTERNAL://0.0.0.0:9094{{ end }}{{ if $isController }},CONTROLLER://0.0.0.0:9093{{ end }}
inter.broker.listener.name=INTERNAL
listener.security.protocol.map=CONTROLLER:SSL,CLIENT:SASL_SSL,INTERNAL:SSL{{ if $outside }},EXTERNAL:SASL_SSL{{ end }}
listener.name.internal.ssl.client.auth=required
{{- include "moldau.default" (list $root $brokers "listener.name.client.sasl.enabled.mechanisms" "SCRAM-SHA-512,SCRAM-SHA-256") }}
{{- if $outside }}
{{- include "moldau.default" (list $root $brokers "listener.name.external.sasl.enabled.mechanisms" "SCRAM-SHA-512,SCRAM-SHA-256") }}
{{- end }}
{{- else }}
listeners=PLAINTEXT://0.0.0.0:9092{{ if $outside }},EXTERNAL://0.0.0.0:9094{{ end }}{{ if $isController }},CONTROLLER://0.0.0.0:9093{{ end }}
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT
{{- end }}
log.dirs={{ range $disk := until (include "moldau.disks" $root | int) }}{{ if $disk }},{{ end }}/var/lib/moldau/data-{{ $disk }}/log{{ end }}
{{- include "moldau.default" (list $root $brokers "offsets.topic.replication.factor" $copies) }}
{{- include "moldau.default" (list $root $brokers "transaction.state.log.replication.factor" $copies) }}
{{- include "moldau.default" (list $root $brokers "transaction.state.log.min.isr" (sub $copies 1 | max 1)) }}
{{ include "moldau.commonProperties" (list $root $brokers) }}
{{- end -}}

{{/* How many volumes, and log directories, a broker has. */}}
{{- define "moldau.disks" -}}
{{- $storage := .Values.brokers.storage -}}
{{- if $storage.directories }}{{ len $storage.directories }}{{ else }}{{ int $storage.disks }}{{ end -}}
{{- end -}}

{{/* The port of a broker outside: a list of the root and the broker's place in the order of ids. */}}
{{- define "moldau.externalPort" -}}
{{- $external := (index . 0).Values.brokers.external -}}
{{- if eq $external.type "NodePort" -}}
{{- add $external.firstNodePort (index . 1) -}}
{{- else -}}
9094
{{- end -}}
{{- end -}}

{{/* What pods of both roles have: a list of the root, the role and the role's values. */}}
{{- define "moldau.podSpec" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $pods := index . 2 -}}
serviceAccountName: {{ include "moldau.serviceAccountName" $root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $pods.terminationGracePeriodSeconds }}
securityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $pods.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
  -
    {{- toYaml . | nindent 4 }}
    {{- if not (hasKey . "labelSelector") }}
    labelSelector:
      matchLabels:
        {{- include "moldau.selectorLabels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ $role }}
    {{- end }}
{{- end }}
{{- end }}
{{- if $pods.affinity }}
affinity:
  {{- toYaml $pods.affinity | nindent 2 }}
{{- else }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "moldau.selectorLabels" $root | nindent 14 }}
              app.kubernetes.io/component: {{ $role }}
{{- end }}
volumes:
  - name: configuration
    configMap:
      name: {{ include "moldau.fullname" $root }}-{{ $role }}
  - name: temporary
    emptyDir: {sizeLimit: 64Mi}
{{- if $root.Values.security.enabled }}
  - name: tls
    secret:
      secretName: {{ include "moldau.tlsSecret" (list $root $role) }}
      defaultMode: 0440
{{- include "moldau.adminVolumes" $root | nindent 2 }}
{{- end }}
{{- with $pods.extraVolumes }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if include "moldau.asksForZone" (list $root $role) }}
  - name: rack
    emptyDir: {sizeLimit: 1Mi}
  - name: api
    projected:
      sources:
        - serviceAccountToken: {path: token, expirationSeconds: 600}
        - configMap:
            name: kube-root-ca.crt
            items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end -}}

{{/* Whether an init container looks for the zone of the machine: a list of the root and the role. */}}
{{- define "moldau.asksForZone" -}}
{{- if and (eq (index . 1) "broker") (eq (index . 0).Values.brokers.rack.from "node") -}}yes{{- end -}}
{{- end -}}

{{/* What the containers of a pod share: a list of the root, the role, the number of its volumes, the role's values. */}}
{{- define "moldau.container" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
image: {{ include "moldau.image" $root | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
securityContext:
  {{- toYaml $root.Values.containerSecurityContext | nindent 2 }}
env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: MOLDAU_CLUSTER_ID
    value: {{ include "moldau.clusterId" $root | quote }}
{{- include "moldau.clientEnvironment" (list $root $role) | nindent 2 }}
{{- if eq $role (include "moldau.controllerRole" $root) }}
  - name: MOLDAU_INITIAL_CONTROLLERS
    valueFrom:
      configMapKeyRef:
        name: {{ include "moldau.fullname" $root }}-quorum
        key: initial-controllers
{{- if $root.Values.security.enabled }}
  - name: MOLDAU_ADMIN_PASSWORD_FILE
    value: /etc/moldau/admin/password
  - name: MOLDAU_CONTROLLERS_PROFILE
    value: controllers
{{- end }}
{{- end }}
{{- if eq $role "controller" }}
{{- else if eq $root.Values.brokers.rack.from "pod" }}
  - name: MOLDAU_RACK
    valueFrom:
      fieldRef:
        fieldPath: metadata.labels['{{ $root.Values.brokers.rack.label }}']
{{- else if eq $root.Values.brokers.rack.from "node" }}
  - name: MOLDAU_RACK_FILE
    value: /run/moldau/rack
  - name: MOLDAU_ZONE_LABEL
    value: {{ $root.Values.brokers.rack.label | quote }}
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
{{- end }}
{{- with (index . 3).extraEnv }}
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - name: configuration
    mountPath: /etc/moldau/server.properties
    subPathExpr: $(POD_NAME).properties
    readOnly: true
  - name: temporary
    mountPath: /tmp
{{- if $root.Values.security.enabled }}
  - name: tls
    mountPath: /etc/moldau/tls
    readOnly: true
{{- include "moldau.adminMounts" $root | nindent 2 }}
{{- end }}
{{- if include "moldau.asksForZone" (list $root $role) }}
  - name: rack
    mountPath: /run/moldau
{{- end }}
{{- with (index . 3).extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $disk := until (int (index . 2)) }}
  - name: data-{{ $disk }}
    mountPath: /var/lib/moldau/data-{{ $disk }}
{{- end }}
{{- end -}}

{{/* A volume per log directory: a list of the labels, the number of volumes and the storage values. */}}
{{- define "moldau.volumeClaims" -}}
{{- $labels := index . 0 -}}
{{- $storage := index . 2 -}}
{{- range $disk := until (int (index . 1)) }}
{{- $own := $storage -}}
{{- if $storage.directories }}{{ $own = index $storage.directories $disk }}{{ end }}
- metadata:
    name: data-{{ $disk }}
    labels:
      {{- $labels | nindent 6 }}
  spec:
    accessModes: [ReadWriteOnce]
{{- if $own.storageClassName }}
    storageClassName: {{ $own.storageClassName }}
{{- end }}
    resources:
      requests:
        storage: {{ $own.size }}
{{- end }}
{{- end -}}

{{- define "moldau.probes" -}}
{{- /* Of liveness: no network, which clients could fill, and both event loops. */}}
startupProbe:
  exec: {command: [moldau, server, health, /etc/moldau/server.properties]}
  periodSeconds: 2
  timeoutSeconds: 10
  failureThreshold: 60
livenessProbe:
  exec: {command: [moldau, server, health, /etc/moldau/server.properties]}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http{{ if .Values.security.enabled }}, scheme: HTTPS{{ end }}}
  periodSeconds: 5
  timeoutSeconds: 6
  failureThreshold: 2
{{- end -}}
